/* The table of the two ends of a convolution as a product [channels out][K] x [K][positions]: what stands before and
 * after the micro-kernel of gemm_u8s8.h.
 *
 *   pack_runs  packs B straight from x or its padded copy (conv.h): row k of B is the run at base + at[k]. A row of the
 *              table has it for the layout of one packer of gemm_u8s8.h (`packs_like`); for any other layout the runs are
 *              copied into a matrix first, a few hundred columns at a time, and packed by the micro-kernel's own packer.
 *   finish     corrects, adds the bias and requantizes one channel of a block, with one scale, segment by segment: the
 *              positions between the segments, which straddle the ends of lines, are dropped here.
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
    ptrdiff_t from, length, to; /* first column of a block; first element of an output channel */
} qt_segment;

typedef struct {
    const qt_requantize *q; /* NULL: int32 out */
    float x_scale, w_scale, multiplier;
    uint32_t add; /* to every position, modulo 2^32 */
} qt_channel;

typedef struct {
    const char *name;
    qt_isa isa;
    void (*packs_like)(const uint8_t *, ptrdiff_t, ptrdiff_t, ptrdiff_t, ptrdiff_t, uint8_t, void *, uint32_t *);
    void (*pack_runs)(const uint8_t *base, const ptrdiff_t *at, ptrdiff_t cols, ptrdiff_t kc, uint8_t flip, void *packed,
                      uint32_t *colsum);
    /* out[to + i] from acc[from + i] - less[from + i] + add */
    void (*finish)(const qt_channel *c, const uint32_t *acc, const uint32_t *less, const qt_segment *segments,
                   ptrdiff_t count, void *out);
} qt_conv_ends;

#if defined(__GNUC__) || defined(__clang__)
#define QT_INLINE static inline __attribute__((always_inline))
#else
#define QT_INLINE static inline
#endif

/* Plain C, for every target that compiles it. */
QT_INLINE void qt_finish_channel(const qt_channel *c, const uint32_t *restrict acc, const uint32_t *restrict less,
                                 const qt_segment *segments, ptrdiff_t count, void *out) {
    const qt_requantize *q = c->q;
    const uint32_t add = c->add;
    for (ptrdiff_t s = 0; s < count; ++s) {
        const ptrdiff_t n = segments[s].length;
        const uint32_t *restrict a = acc + segments[s].from, *restrict l = less + segments[s].from;
        if (!q) {
            uint32_t *restrict y = (uint32_t *)out + segments[s].to;
            for (ptrdiff_t i = 0; i < n; ++i) y[i] = a[i] - l[i] + add;
            continue;
        }
        uint8_t *restrict y = (uint8_t *)out + segments[s].to;
        const float lo = q->lo, hi = q->hi, sy = q->y_scale, sx = c->x_scale, sw = c->w_scale, m = c->multiplier;
        const int32_t zy = q->y_zero;
        if (q->form == QT_FORM_MULTIPLIER)
            for (ptrdiff_t i = 0; i < n; ++i)
                y[i] = (uint8_t)(qt_round_clamped((float)(int32_t)(a[i] - l[i] + add) * m, lo, hi) + zy);
        else
            for (ptrdiff_t i = 0; i < n; ++i)
                y[i] = (uint8_t)(qt_round_clamped((((float)(int32_t)(a[i] - l[i] + add) * sx) * sw) / sy, lo, hi) + zy);
    }
}

static void qt_finish_channel__scalar(const qt_channel *c, const uint32_t *acc, const uint32_t *less,
                                      const qt_segment *segments, ptrdiff_t count, void *out) {
    qt_finish_channel(c, acc, less, segments, count, out);
}

static const qt_conv_ends qt_conv_ends_plain__scalar = {
    .name = "plain__scalar",
    .isa = QT_ISA_SCALAR,
    .finish = qt_finish_channel__scalar,
};

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#include "conv_ends_avx512vnni.h"

__attribute__((target("avx2"))) static void qt_finish_channel__avx2(const qt_channel *c, const uint32_t *acc,
                                                                    const uint32_t *less, const qt_segment *segments,
                                                                    ptrdiff_t count, void *out) {
    qt_finish_channel(c, acc, less, segments, count, out);
}

static const qt_conv_ends qt_conv_ends_plain__avx2 = {
    .name = "plain__avx2",
    .isa = QT_ISA_AVX2,
    .finish = qt_finish_channel__avx2,
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
