/* Micro-kernel 32x32c64__amx_int8: TDPBUSD, a block of 2x2 tiles of 16x16 sums.
 *
 * Tiles 0-3 are the sums, 4-5 two tiles of A (16 rows by 64 k), 6-7 two of B (16 k-quads by 16 columns). Per step of 64 k
 * four tile loads feed four TDPBUSD of 16 cycles each: the tile unit stays busy as long as B comes from L1 and A from L2.
 *
 * Exact: TDPBUSD adds products |A'B'| <= 255*128 modulo 2^32.
 *
 * The instructions are own assembler: _tile_loadd and _tile_loadconfig of gcc 12 have no memory clobber, so that stores
 * to the operands may move behind them. Whoever runs the kernel calls begin() and end() around it, in its own thread:
 * the shape of the tiles is state of the thread. Needs the permission of amx_permission.h.
 *
 * tile(): the end of the block before (32 rows of 32 sums) is spread over the steps of this one; the vector units are idle
 * while the tile unit works. A step takes 76 cycles with both operands in L1, 78 with A in L2, 104 with both. So B stays in
 * L1, up to 32 KB of it (K = 1024), because A comes by TILELOADDT1, without whose hint it would drive B out. Panels of up
 * to 4 rows go to VPDPBUSD, which does not multiply the 28 rows that are not there, panels of up to 16 take one tile of A.
 *
 * int32 results whose only corrections are those of the columns (za' * colsum) need no end: TILELOADD with a stride of 0
 * puts one line of corrections into all rows of the sums, and TILESTORED writes the result, whose lines the steps before
 * have fetched for writing. The order of additions does not matter modulo 2^32.
 *
 * A tile of A is 16 rows of 64 bytes at any distance, so A' that is unsigned to begin with need not be packed. It pays
 * only for rows on cache lines (others take two lines for one), and where a panel of A stays in L1 while B passes.
 *
 * Layout: gemm_pack_c4.h.
 */
#ifndef QT_GEMM_U8S8_AMX_INT8_H
#define QT_GEMM_U8S8_AMX_INT8_H

#include "gemm_pack_c4.h"
#include "gemm_u8s8_avx512vnni.h"

#define QT_TILE_LOAD(T, FROM, LD)                                                                                      \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #T : : "r"(FROM), "r"((ptrdiff_t)(LD)) : "memory")
/* The same with the hint that the lines will not be needed again: what is in L1 stays there. */
#define QT_TILE_LOAD_ONCE(T, FROM, LD)                                                                                 \
    __asm__ volatile("tileloaddt1 (%0,%1,1), %%tmm" #T : : "r"(FROM), "r"((ptrdiff_t)(LD)) : "memory")
#define QT_TILE_STORE(T, TO, LD)                                                                                       \
    __asm__ volatile("tilestored %%tmm" #T ", (%0,%1,1)" : : "r"(TO), "r"((ptrdiff_t)(LD)) : "memory")
#define QT_PREFETCH_TO_WRITE(TO) __asm__ volatile("prefetchw (%0)" : : "r"(TO))
#define QT_TILE_ZERO(T) __asm__ volatile("tilezero %%tmm" #T : :)
#define QT_TILE_DOT(C, A, B) __asm__ volatile("tdpbusd %%tmm" #B ", %%tmm" #A ", %%tmm" #C : :)

typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} qt_tile_config;

static void qt_tiles_begin__amx_int8(void) {
    qt_tile_config config = {.palette = 1};
    for (int t = 0; t < 8; ++t) config.row_bytes[t] = 64, config.rows[t] = 16;
    __asm__ volatile("ldtilecfg %0" : : "m"(config) : "memory");
}

static void qt_tiles_end__amx_int8(void) { __asm__ volatile("tilerelease" : :); }

/* One step of 64 k of a block, rows of A lda bytes apart; `tall` if there is a second tile of rows. */
static inline __attribute__((always_inline)) void qt_gemm_step__amx_int8(const uint8_t *a, ptrdiff_t lda,
                                                                         const uint8_t *b, int tall, int a_passes) {
    QT_TILE_LOAD(6, b, 64);
    if (a_passes) QT_TILE_LOAD_ONCE(4, a, lda);
    else QT_TILE_LOAD(4, a, lda);
    QT_TILE_LOAD(7, b + 1024, 64);
    QT_TILE_DOT(0, 4, 6);
    if (tall && a_passes) QT_TILE_LOAD_ONCE(5, a + 16 * lda, lda);
    else if (tall) QT_TILE_LOAD(5, a + 16 * lda, lda);
    QT_TILE_DOT(1, 4, 7);
    if (tall) {
        QT_TILE_DOT(2, 5, 6);
        QT_TILE_DOT(3, 5, 7);
    }
}

static inline __attribute__((always_inline)) void qt_gemm_load__amx_int8(const uint32_t *c, ptrdiff_t ldc, int tall) {
    QT_TILE_LOAD(0, c, ldc * 4);
    QT_TILE_LOAD(1, c + 16, ldc * 4);
    if (!tall) return;
    QT_TILE_LOAD(2, c + 16 * ldc, ldc * 4);
    QT_TILE_LOAD(3, c + 16 * ldc + 16, ldc * 4);
}

static inline __attribute__((always_inline)) void qt_gemm_store__amx_int8(uint32_t *c, ptrdiff_t ldc, int tall) {
    QT_TILE_STORE(0, c, ldc * 4);
    QT_TILE_STORE(1, c + 16, ldc * 4);
    if (!tall) return;
    QT_TILE_STORE(2, c + 16 * ldc, ldc * 4);
    QT_TILE_STORE(3, c + 16 * ldc + 16, ldc * 4);
}

static void qt_gemm_run_32x32c64__amx_int8(ptrdiff_t kc, const void *a, const void *b, uint32_t *c, ptrdiff_t ldc) {
    qt_gemm_load__amx_int8(c, ldc, 1);
    for (ptrdiff_t k = 0; k < kc; k += 64)
        qt_gemm_step__amx_int8((const uint8_t *)a + k * 32, 64, (const uint8_t *)b + k * 32, 1, 0);
    qt_gemm_store__amx_int8(c, ldc, 1);
}

QT_TARGET_AVX512VNNI static inline __attribute__((always_inline)) void qt_gemm_block__amx_int8(
    const qt_tile *t, int tall, int a_passes, int in_place) {
    const uint8_t *a = (const uint8_t *)t->a, *b = (const uint8_t *)t->b;
    const char *ahead = t->ahead;
    const ptrdiff_t lda = in_place ? t->a_ld : 64, a_step = in_place ? 64 : 2048;
    const ptrdiff_t kc = t->kc, steps = kc / 64, fetch = steps ? (t->ahead_bytes / 64 + steps - 1) / steps : 0;
    uint32_t *acc = t->acc;
    uint32_t *out = t->out;
    if (t->first && t->start) { /* rows 0 bytes apart: each is the same */
        QT_TILE_LOAD(0, t->start, 0);
        QT_TILE_LOAD(1, t->start + 16, 0);
        if (tall) {
            QT_TILE_LOAD(2, t->start, 0);
            QT_TILE_LOAD(3, t->start + 16, 0);
        }
    } else if (t->first) {
        QT_TILE_ZERO(0);
        QT_TILE_ZERO(1);
        QT_TILE_ZERO(2);
        QT_TILE_ZERO(3);
    } else
        qt_gemm_load__amx_int8(acc, 32, tall);
    qt_tile_end e = {0}; /* a copy: the assembler may change memory, but not what nobody points to */
    if (t->earlier) e = *t->earlier;
    qt_end_state__avx512vnni s;
    if (e.rows) qt_end_load__avx512vnni(&e, &s);
    const ptrdiff_t share = steps ? ((e.rows + steps - 1) / steps + 1) & ~(ptrdiff_t)1 : 0;
    const ptrdiff_t owned = out && steps ? (t->rows + steps - 1) / steps : 0;
    ptrdiff_t i = 0, row = 0;
    for (ptrdiff_t k = 0; k < kc; k += 64, a += a_step) {
        qt_gemm_step__amx_int8(a, lda, b + k * 32, tall, a_passes);
        for (ptrdiff_t line = 0; line < fetch; ++line, ahead += 64) _mm_prefetch(ahead, _MM_HINT_T1);
        for (ptrdiff_t stop = qt_least(row + owned, t->rows); row < stop; ++row) {
            QT_PREFETCH_TO_WRITE(out + row * t->out_ld);
            QT_PREFETCH_TO_WRITE(out + row * t->out_ld + 16);
        }
        for (ptrdiff_t stop = qt_least(i + share, e.rows - 1); i < stop; i += 2) qt_end_rows__avx512vnni(&e, &s, i, 1);
    }
    for (; i + 2 <= e.rows; i += 2) qt_end_rows__avx512vnni(&e, &s, i, 1);
    if (i < e.rows) qt_end_rows__avx512vnni(&e, &s, i, 0);
    if (out) qt_gemm_store__amx_int8(out, t->out_ld, tall);
    else qt_gemm_store__amx_int8(acc, 32, tall);
}

QT_TARGET_AVX512VNNI static void qt_gemm_tile_32x32c64__amx_int8(const qt_tile *t) {
    if (t->rows <= 4) {
        qt_gemm_few__avx512vnni(t, 2048);
        if (t->earlier) qt_finish__avx512vnni(t->earlier);
    } else if (t->rows <= 16)
        qt_gemm_block__amx_int8(t, 0, 0, 0);
    else if (t->a_ld)
        qt_gemm_block__amx_int8(t, 1, 0, 1);
    else if (t->a_passes)
        qt_gemm_block__amx_int8(t, 1, 1, 0);
    else
        qt_gemm_block__amx_int8(t, 1, 0, 0);
}

static const qt_gemm_u8s8 qt_gemm_u8s8_32x32c64__amx_int8 = {
    .name = "32x32c64__amx_int8",
    .isa = QT_ISA_AMX_INT8,
    .mr = 32,
    .nr = 32,
    .kr = 64,
    .max_kc = PTRDIFF_MAX,
    .a_size = 1,
    .b_size = 1,
    .pack_a = qt_pack_a_32c64__avx512vnni,
    .pack_b = qt_pack_b_32c64__avx512vnni,
    .run = qt_gemm_run_32x32c64__amx_int8,
    .begin = qt_tiles_begin__amx_int8,
    .end = qt_tiles_end__amx_int8,
    .tile = qt_gemm_tile_32x32c64__amx_int8,
    .finish = qt_finish__avx512vnni,
    .in_place = 1,
    .stores = 1,
    .stream = qt_stream__avx512vnni,
    .stream_rows = 16,
};

#endif
