/* Products of u8 x s8 as processors without VNNI compute them: what the exact kernels of gemm_u8s8.h are there to avoid.
 *
 * VPMADDUBSW adds the products of two neighbours along K and saturates the sum to int16; VPMADDWD with ones and VPADDD
 * then add those in int32. Runtimes (MLAS, oneDNN) do this on AVX2 and on AVX-512 without VNNI. The pairs are (0, 1),
 * (2, 3), ... of K; the last one of an odd K has a zero.
 *
 * One layout for all rows: a panel is 32 columns; for each quad of K, 32 columns of 4 bytes. Beside it one byte per quad
 * tells whether any of its pairs can saturate at all: the largest sum of a pair is 255 * (the positive of its two weights),
 * the smallest 255 * (the negative ones). Counting looks at no others.
 *
 * To add an ISA: one header that defines qt_saturating_rows__<isa> and one line in saturating.inc.
 */
#ifndef QT_SATURATING_H
#define QT_SATURATING_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "cpu.h"

enum { QT_SATURATING_COLUMNS = 32 };

typedef struct {
    const char *name; /* rows__<isa> */
    qt_isa isa;
    /* `rows` rows of A with a panel: sums to out[row * ldo + column] if out, else nowhere; counts[32] += saturating pairs
     * if counts. `cols` columns of the panel exist in out; counts always has 32. */
    void (*run)(const uint8_t *a, ptrdiff_t lda, ptrdiff_t rows, ptrdiff_t k, const char *bytes, const uint8_t *can,
                int32_t *out, ptrdiff_t ldo, ptrdiff_t cols, int64_t *counts);
} qt_saturating;

/* Columns [0, cols) of B, (k, ldb), to a panel: 32 * 4 * ceil(k / 4) bytes, and ceil(k / 4) of `can`. */
static void qt_saturating_pack(const char *b, ptrdiff_t ldb, ptrdiff_t k, ptrdiff_t cols, char *bytes, uint8_t *can) {
    int8_t *panel = (int8_t *)bytes;
    const ptrdiff_t quads = (k + 3) / 4;
    memset(panel, 0, (size_t)(quads * 4 * QT_SATURATING_COLUMNS));
    for (ptrdiff_t i = 0; i < k; ++i) {
        int8_t *to = panel + i / 4 * 4 * QT_SATURATING_COLUMNS + i % 4;
        for (ptrdiff_t c = 0; c < cols; ++c) to[4 * c] = (int8_t)b[i * ldb + c];
    }
    for (ptrdiff_t q = 0; q < quads; ++q) {
        const int8_t *at = panel + q * 4 * QT_SATURATING_COLUMNS;
        int found = 0;
        for (int i = 0; i < 4 * QT_SATURATING_COLUMNS; i += 2) {
            const int up = (at[i] > 0 ? at[i] : 0) + (at[i + 1] > 0 ? at[i + 1] : 0);
            const int down = (at[i] < 0 ? at[i] : 0) + (at[i + 1] < 0 ? at[i + 1] : 0);
            found |= 255 * up > INT16_MAX || 255 * down < INT16_MIN;
        }
        can[q] = (uint8_t)found;
    }
}

/* Quad `q` of a row of `k` bytes; what lies behind its end is 0. */
static inline uint32_t qt_saturating_quad(const uint8_t *a, ptrdiff_t q, ptrdiff_t k) {
    uint32_t quad = 0;
    if (4 * q + 4 <= k) memcpy(&quad, a + 4 * q, 4);
    else memcpy(&quad, a + 4 * q, (size_t)(k - 4 * q));
    return quad;
}

#include "saturating_avx2.h"
#include "saturating_scalar.h"

static const qt_saturating *const QT_SATURATING[] = {
#define QT_UKERNEL(isa) &qt_saturating_rows__##isa,
#include "saturating.inc"
#undef QT_UKERNEL
};
enum { QT_SATURATING_COUNT = sizeof(QT_SATURATING) / sizeof(QT_SATURATING[0]) };

/* The first row, best first, that the cap admits and the processor has. The scalar row always qualifies. */
static const qt_saturating *qt_choose_saturating(uint32_t features, qt_isa cap) {
    for (int i = 0; i < QT_SATURATING_COUNT; ++i) {
        const uint32_t need = QT_ISAS[QT_SATURATING[i]->isa].mask;
        if (QT_SATURATING[i]->isa <= cap && (features & need) == need) return QT_SATURATING[i];
    }
    return QT_SATURATING[QT_SATURATING_COUNT - 1];
}

#endif
