/* Micro-kernel 12x32c64__avx512vnni: VPDPBUSD on zmm, 12 rows by two vectors of 16 columns.
 *
 * A dword of A (four k of one row) is broadcast by the load unit, so that the two vector units do nothing but multiply:
 * per k-quad 14 loads for 24 VPDPBUSD. 24 accumulators, two lines of B and one of A are 27 of 32 registers.
 *
 * Exact: VPDPBUSD (not VPDPBUSDS) adds four products |A'B'| <= 255*128 modulo 2^32, without saturation.
 *
 * The accumulators have names and the kernels are never inlined: gcc 12 keeps arrays of them, or inlined copies, in
 * memory (340-380 GOPS instead of 640-690).
 *
 * Smaller kernels of 1, 2, 4 and 8 rows serve the last panel; for them B is read once from memory, which is their limit.
 * Layout: gemm_pack_c4.h. `a_step` is the distance of two steps of 64 k of A, so that panels of AMX can be read as well.
 */
#ifndef QT_GEMM_U8S8_AVX512VNNI_H
#define QT_GEMM_U8S8_AVX512VNNI_H

#include "gemm_pack_c4.h"
#include "gemm_stream_avx512vnni.h"
#include "requantize_avx512vnni.h"

#define QT_ROWS_1(X) X(0)
#define QT_ROWS_2(X) QT_ROWS_1(X) X(1)
#define QT_ROWS_4(X) QT_ROWS_2(X) X(2) X(3)
#define QT_ROWS_8(X) QT_ROWS_4(X) X(4) X(5) X(6) X(7)
#define QT_ROWS_12(X) QT_ROWS_8(X) X(8) X(9) X(10) X(11)

#define QT_ROW_START(R)                                                                                                \
    __m512i x##R = first ? _mm512_setzero_si512() : _mm512_loadu_si512(c + (R) * ldc);                                 \
    __m512i y##R = first ? _mm512_setzero_si512() : _mm512_loadu_si512(c + (R) * ldc + 16);
#define QT_ROW_STEP(R)                                                                                                 \
    {                                                                                                                  \
        int32_t quad;                                                                                                  \
        memcpy(&quad, a + (R) * 64 + q, 4);                                                                            \
        const __m512i v = _mm512_set1_epi32(quad);                                                                     \
        x##R = _mm512_dpbusd_epi32(x##R, v, b0);                                                                       \
        y##R = _mm512_dpbusd_epi32(y##R, v, b1);                                                                       \
    }
#define QT_ROW_STORE(R) _mm512_storeu_si512(c + (R) * ldc, x##R), _mm512_storeu_si512(c + (R) * ldc + 16, y##R);

#define QT_DEFINE_KERNEL(ROWS)                                                                                         \
    QT_TARGET_AVX512VNNI static __attribute__((noinline)) void qt_gemm_##ROWS##x32__avx512vnni(                        \
        ptrdiff_t kc, const uint8_t *a, ptrdiff_t a_step, const uint8_t *b, int first, uint32_t *c, ptrdiff_t ldc) {   \
        QT_ROWS_##ROWS(QT_ROW_START)                                                                                   \
        for (; kc > 0; kc -= 64, a += a_step, b += 2048)                                                               \
            for (ptrdiff_t q = 0; q < 64; q += 4) {                                                                    \
                const __m512i b0 = _mm512_loadu_si512(b + q * 16), b1 = _mm512_loadu_si512(b + q * 16 + 1024);         \
                QT_ROWS_##ROWS(QT_ROW_STEP)                                                                            \
            }                                                                                                          \
        QT_ROWS_##ROWS(QT_ROW_STORE)                                                                                   \
    }
QT_DEFINE_KERNEL(1)
QT_DEFINE_KERNEL(2)
QT_DEFINE_KERNEL(4)
QT_DEFINE_KERNEL(8)
QT_DEFINE_KERNEL(12)
#undef QT_DEFINE_KERNEL

static void qt_gemm_run_12x32c64__avx512vnni(ptrdiff_t kc, const void *a, const void *b, uint32_t *c, ptrdiff_t ldc) {
    qt_gemm_12x32__avx512vnni(kc, (const uint8_t *)a, 12 * 64, (const uint8_t *)b, 0, c, ldc);
}

/* The least kernel that holds `rows` <= 12 rows: c[rows'][32] = (first ? 0 : c) + A * B. */
static void qt_gemm_few__avx512vnni(ptrdiff_t kc, const uint8_t *a, ptrdiff_t a_step, const uint8_t *b, ptrdiff_t rows,
                                    int first, uint32_t *c) {
    if (rows > 8) qt_gemm_12x32__avx512vnni(kc, a, a_step, b, first, c, 32);
    else if (rows > 4) qt_gemm_8x32__avx512vnni(kc, a, a_step, b, first, c, 32);
    else if (rows > 2) qt_gemm_4x32__avx512vnni(kc, a, a_step, b, first, c, 32);
    else if (rows > 1) qt_gemm_2x32__avx512vnni(kc, a, a_step, b, first, c, 32);
    else qt_gemm_1x32__avx512vnni(kc, a, a_step, b, first, c, 32);
}

static void qt_gemm_tile_12x32c64__avx512vnni(const qt_tile *t) {
    qt_gemm_few__avx512vnni(t->kc, (const uint8_t *)t->a, 12 * 64, (const uint8_t *)t->b, t->rows, t->first, t->acc);
    if (t->earlier) qt_finish__avx512vnni(t->earlier);
}

static const qt_gemm_u8s8 qt_gemm_u8s8_12x32c64__avx512vnni = {
    .name = "12x32c64__avx512vnni",
    .isa = QT_ISA_AVX512VNNI,
    .mr = 12,
    .nr = 32,
    .kr = 64,
    .max_kc = PTRDIFF_MAX,
    .a_size = 1,
    .b_size = 1,
    .pack_a = qt_pack_a_12c64__avx512vnni,
    .pack_b = qt_pack_b_32c64__avx512vnni,
    .run = qt_gemm_run_12x32c64__avx512vnni,
    .tile = qt_gemm_tile_12x32c64__avx512vnni,
    .finish = qt_finish__avx512vnni,
    .stream = qt_stream__avx512vnni,
    .stream_rows = 16,
};

#endif
