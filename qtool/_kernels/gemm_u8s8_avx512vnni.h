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
 * A whole tile ends in its registers: the sums begin with the terms of the columns and become codes without a way through
 * memory. The next slice of B is fetched into L2 meanwhile: 512x4096x4096, whose B comes three times from the third-level
 * cache, takes a quarter less time for it.
 *
 * Smaller kernels of 1, 2, 4 and 8 rows serve the last panel; for up to 4 B is read once from memory, which is their limit.
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

#define QT_ROW_NAMES(R) x##R, y##R,
#define QT_ROW_ZERO(R) x##R = y##R = _mm512_setzero_si512();
#define QT_ROW_COPY(R) x##R = s0, y##R = s1;
#define QT_ROW_LOAD(R) x##R = _mm512_loadu_si512(acc + (R) * 32), y##R = _mm512_loadu_si512(acc + (R) * 32 + 16);
#define QT_ROW_STEP(R)                                                                                                 \
    {                                                                                                                  \
        int32_t quad;                                                                                                  \
        memcpy(&quad, a + (R) * 64 + q, 4);                                                                            \
        const __m512i v = _mm512_set1_epi32(quad);                                                                     \
        x##R = _mm512_dpbusd_epi32(x##R, v, b0);                                                                       \
        y##R = _mm512_dpbusd_epi32(y##R, v, b1);                                                                       \
    }
#define QT_ROW_STORE(R) _mm512_storeu_si512(out + (R) * ld, x##R), _mm512_storeu_si512(out + (R) * ld + 16, y##R);
#define QT_PAIR_END(R, S) qt_end_pair__avx512vnni(t->own, &state, R, x##R, y##R, x##S, y##S);
#define QT_PAIRS_END_1
#define QT_PAIRS_END_2
#define QT_PAIRS_END_4
#define QT_PAIRS_END_8
#define QT_PAIRS_END_12                                                                                                \
    QT_PAIR_END(0, 1) QT_PAIR_END(2, 3) QT_PAIR_END(4, 5) QT_PAIR_END(6, 7) QT_PAIR_END(8, 9) QT_PAIR_END(10, 11)

/* ENDS: whether the kernel knows how to end a tile of its own. */
#define QT_DEFINE_KERNEL(ROWS, ENDS)                                                                                   \
    QT_TARGET_AVX512VNNI static __attribute__((noinline)) void qt_gemm_##ROWS##x32__avx512vnni(const qt_tile *t,       \
                                                                                               ptrdiff_t a_step) {     \
        __m512i QT_ROWS_##ROWS(QT_ROW_NAMES) b0, b1;                                                                   \
        const uint8_t *a = (const uint8_t *)t->a, *b = (const uint8_t *)t->b;                                          \
        const char *ahead = t->ahead;                                                                                  \
        ptrdiff_t kc = t->kc;                                                                                          \
        const ptrdiff_t steps = kc / 64, fetch = steps ? (t->ahead_bytes / 64 + steps - 1) / steps : 0;                \
        if (!t->first) {                                                                                               \
            const uint32_t *acc = t->acc;                                                                              \
            QT_ROWS_##ROWS(QT_ROW_LOAD)                                                                                \
        } else if (t->start) {                                                                                         \
            const __m512i s0 = _mm512_loadu_si512(t->start), s1 = _mm512_loadu_si512(t->start + 16);                   \
            QT_ROWS_##ROWS(QT_ROW_COPY)                                                                                \
        } else {                                                                                                       \
            QT_ROWS_##ROWS(QT_ROW_ZERO)                                                                                \
        }                                                                                                              \
        for (; kc > 0; kc -= 64, a += a_step, b += 2048) {                                                             \
            if (ROWS >= 8) /* fewer wait for B itself */                                                               \
                for (ptrdiff_t line = 0; line < fetch; ++line, ahead += 64) _mm_prefetch(ahead, _MM_HINT_T1);          \
            for (ptrdiff_t q = 0; q < 64; q += 4) {                                                                    \
                b0 = _mm512_loadu_si512(b + q * 16), b1 = _mm512_loadu_si512(b + q * 16 + 1024);                       \
                QT_ROWS_##ROWS(QT_ROW_STEP)                                                                            \
            }                                                                                                          \
        }                                                                                                              \
        if (ENDS && t->own) {                                                                                          \
            qt_end_state__avx512vnni state;                                                                            \
            qt_end_load__avx512vnni(t->own, &state);                                                                   \
            QT_PAIRS_END_##ROWS                                                                                        \
        } else if (t->out) {                                                                                           \
            uint32_t *out = t->out;                                                                                    \
            const ptrdiff_t ld = t->out_ld;                                                                            \
            QT_ROWS_##ROWS(QT_ROW_STORE)                                                                               \
        } else {                                                                                                       \
            uint32_t *out = t->acc;                                                                                    \
            enum { ld = 32 };                                                                                          \
            QT_ROWS_##ROWS(QT_ROW_STORE)                                                                               \
        }                                                                                                              \
    }
QT_DEFINE_KERNEL(1, 0)
QT_DEFINE_KERNEL(2, 0)
QT_DEFINE_KERNEL(4, 0)
QT_DEFINE_KERNEL(8, 0)
QT_DEFINE_KERNEL(12, 1)
#undef QT_DEFINE_KERNEL

/* The least kernel that holds the rows of the tile. */
static void qt_gemm_few__avx512vnni(const qt_tile *t, ptrdiff_t a_step) {
    if (t->rows > 8) qt_gemm_12x32__avx512vnni(t, a_step);
    else if (t->rows > 4) qt_gemm_8x32__avx512vnni(t, a_step);
    else if (t->rows > 2) qt_gemm_4x32__avx512vnni(t, a_step);
    else if (t->rows > 1) qt_gemm_2x32__avx512vnni(t, a_step);
    else qt_gemm_1x32__avx512vnni(t, a_step);
}

static void qt_gemm_tile_12x32c64__avx512vnni(const qt_tile *t) {
    qt_gemm_few__avx512vnni(t, 12 * 64);
    if (t->earlier) qt_finish__avx512vnni(t->earlier);
}

/* Not of a fused product: any distance between the rows of c. */
static void qt_gemm_run_12x32c64__avx512vnni(ptrdiff_t kc, const void *a, const void *b, uint32_t *c, ptrdiff_t ldc) {
    uint32_t acc[12 * 32];
    const qt_tile t = {.kc = kc, .a = a, .b = b, .rows = 12, .acc = acc};
    for (int i = 0; i < 12; ++i) memcpy(acc + i * 32, c + i * ldc, 128);
    qt_gemm_12x32__avx512vnni(&t, 12 * 64);
    for (int i = 0; i < 12; ++i) memcpy(c + i * ldc, acc + i * 32, 128);
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
    .stores = 1,
    .ends = 1,
    .stream = qt_stream__avx512vnni,
    .stream_rows = 16,
};

#endif
