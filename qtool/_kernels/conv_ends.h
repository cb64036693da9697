/* The table of the two ends of a convolution as a product [channels out][K] x [K][positions]: what stands before and
 * after the micro-kernel of gemm_u8s8.h.
 *
 *   pack_runs  packs B straight from x or its padded copy (conv.h): row k of B is the run at base + at[k]. A row of the
 *              table has it for the layout of one packer of gemm_u8s8.h (`packs_like`); for any other layout the runs are
 *              copied into a matrix first, a few hundred columns at a time, and packed by the micro-kernel's own packer.
 *   finish     corrects, adds the bias and requantizes a tile of sums, one scale per row (channel), segment by segment:
 *              the positions between the segments, which straddle the ends of lines, are dropped here.
 *
 * To add an ISA: one header that defines qt_conv_ends_<name> and one line in conv_ends.inc.
 */
#ifndef QT_CONV_ENDS_H
#define QT_CONV_ENDS_H

#include <stddef.h>
#include <stdint.h>

#include "cpu.h"
#include "gemm_u8s8.h"
#include "requantize.h"

typedef struct {
    ptrdiff_t from, length, to; /* first column of a tile; first element of an output channel */
} qt_segment;

typedef struct {
    const qt_requantize *q; /* NULL: int32 out, without scales */
    float x_scale;
    const float *w_scale, *multiplier; /* [rows] */
    const uint32_t *add;               /* [rows], to every position, modulo 2^32 */
} qt_channels;

typedef struct {
    const char *name;
    qt_isa isa;
    void (*packs_like)(const uint8_t *, ptrdiff_t, ptrdiff_t, ptrdiff_t, ptrdiff_t, uint8_t, void *, uint32_t *);
    void (*pack_runs)(const uint8_t *base, const ptrdiff_t *at, ptrdiff_t cols, ptrdiff_t kc, uint8_t flip, void *packed,
                      uint32_t *colsum);
    /* out[r*out_ld + to + i] from acc[r*ld + from + i] - less[from + i] + add[r]; out_ld in elements */
    void (*finish)(const qt_channels *c, ptrdiff_t rows, const uint32_t *acc, ptrdiff_t ld, const uint32_t *less,
                   const qt_segment *segments, ptrdiff_t count, void *out, ptrdiff_t out_ld);
} qt_conv_ends;

#if defined(__GNUC__) || defined(__clang__)
#define QT_INLINE static inline __attribute__((always_inline))
#else
#define QT_INLINE static inline
#endif

/* Plain C, for every target that compiles it: one segment of one channel. */
QT_INLINE void qt_finish_segment(const qt_channels *c, ptrdiff_t r, const uint32_t *restrict acc,
                                 const uint32_t *restrict less, ptrdiff_t n, void *out) {
    const qt_requantize *q = c->q;
    const uint32_t add = c->add[r];
    if (!q) {
        uint32_t *restrict y = (uint32_t *)out;
        for (ptrdiff_t i = 0; i < n; ++i) y[i] = acc[i] - less[i] + add;
        return;
    }
    uint8_t *restrict y = (uint8_t *)out;
    const float lo = q->lo, hi = q->hi, sy = q->y_scale, sx = c->x_scale, sw = c->w_scale[r], m = c->multiplier[r];
    const int32_t zy = q->y_zero;
    if (q->form == QT_FORM_MULTIPLIER)
        for (ptrdiff_t i = 0; i < n; ++i)
            y[i] = (uint8_t)(qt_round_clamped((float)(int32_t)(acc[i] - less[i] + add) * m, lo, hi) + zy);
    else
        for (ptrdiff_t i = 0; i < n; ++i)
            y[i] = (uint8_t)(qt_round_clamped((((float)(int32_t)(acc[i] - less[i] + add) * sx) * sw) / sy, lo, hi) + zy);
}

QT_INLINE void qt_finish_tile(const qt_channels *c, ptrdiff_t rows, const uint32_t *acc, ptrdiff_t ld,
                              const uint32_t *less, const qt_segment *s, ptrdiff_t count, void *out, ptrdiff_t out_ld) {
    const ptrdiff_t width = c->q ? 1 : 4;
    for (ptrdiff_t r = 0; r < rows; ++r)
        for (ptrdiff_t i = 0; i < count; ++i)
            qt_finish_segment(c, r, acc + r * ld + s[i].from, less + s[i].from, s[i].length,
                              (char *)out + (r * out_ld + s[i].to) * width);
}

static void qt_finish_tile__scalar(const qt_channels *c, ptrdiff_t rows, const uint32_t *acc, ptrdiff_t ld,
                                   const uint32_t *less, const qt_segment *segments, ptrdiff_t count, void *out,
                                   ptrdiff_t out_ld) {
    qt_finish_tile(c, rows, acc, ld, less, segments, count, out, out_ld);
}

static const qt_conv_ends qt_conv_ends_plain__scalar = {
    .name = "plain__scalar",
    .isa = QT_ISA_SCALAR,
    .finish = qt_finish_tile__scalar,
};

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#include "conv_ends_avx512vnni.h"

__attribute__((target("avx2"))) static void qt_finish_tile__avx2(const qt_channels *c, ptrdiff_t rows,
                                                                 const uint32_t *acc, ptrdiff_t ld,
                                                                 const uint32_t *less, const qt_segment *segments,
                                                                 ptrdiff_t count, void *out, ptrdiff_t out_ld) {
    qt_finish_tile(c, rows, acc, ld, less, segments, count, out, out_ld);
}

static const qt_conv_ends qt_conv_ends_plain__avx2 = {
    .name = "plain__avx2",
    .isa = QT_ISA_AVX2,
    .finish = qt_finish_tile__avx2,
};
#endif

static const qt_conv_ends *const QT_CONV_ENDS[] = {
#define QT_UKERNEL(name) &qt_conv_ends_##name,
#include "conv_ends.inc"
#undef QT_UKERNEL
};
enum { QT_CONV_ENDS_COUNT = sizeof(QT_CONV_ENDS) / sizeof(QT_CONV_ENDS[0]) };

/* The first row, best first, that the cap admits and the processor has. The scalar row always qualifies. */
static const qt_conv_ends *qt_choose_conv_ends(uint32_t features, qt_isa cap) {
    for (int i = 0; i < QT_CONV_ENDS_COUNT; ++i) {
        const uint32_t need = QT_ISAS[QT_CONV_ENDS[i]->isa].mask;
        if (QT_CONV_ENDS[i]->isa <= cap && (features & need) == need) return QT_CONV_ENDS[i];
    }
    return QT_CONV_ENDS[QT_CONV_ENDS_COUNT - 1];
}

/* pack_runs of a row if it writes what the micro-kernel reads, else NULL. */
static int qt_packs_runs(const qt_conv_ends *ends, const qt_gemm_u8s8 *kernel) {
    return ends->pack_runs != NULL && ends->packs_like == kernel->pack_b;
}

#undef QT_INLINE
#endif
