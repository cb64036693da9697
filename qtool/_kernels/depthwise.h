/* The table of depthwise kernels: one input channel, one output channel, over the flat positions of a band (conv.h).
 *
 *     acc[f] = init + sum over lines r and taps t of  copy[line[r] + f*stride + t*dilation] * w[r][t]
 *
 * Two forms of the copy. Bytes: x' = x ^ 0x80 if x is signed, w' = w ^ 0x80 if w is unsigned, the zero points shifted
 * alike; init holds what does not depend on the position, and -zw' * sum(x') is left to the kernel, for zw' != 0 only
 * (symmetric weights have none). 16 bits: x - zx and w - zw, both in -255..255, nothing left to correct.
 *
 * To add an ISA: one header that defines qt_depthwise_<name> and one line in depthwise.inc.
 */
#ifndef QT_DEPTHWISE_H
#define QT_DEPTHWISE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "conv.h"
#include "cpu.h"
#include "requantize.h"

enum { QT_DEPTHWISE_STEP = 64 }; /* a multiple of the positions that any kernel computes at a time */

typedef struct {
    const void *copy;      /* readable QT_DEPTHWISE_STEP * stride + taps + 64 elements beyond the last position */
    const ptrdiff_t *line; /* offset of each kernel line in elements */
    ptrdiff_t lines, taps, stride, dilation;
    ptrdiff_t n;            /* positions, a multiple of QT_DEPTHWISE_STEP */
    const uint32_t *weights; /* groups[lines][ceil(taps / kr)] of kr weights of 4 / kr bytes, padded by 0 */
    const uint32_t *ones;    /* the same with 1 for each weight, one line: bytes only */
    uint32_t init, w_zero;  /* w_zero: bytes only */
    const qt_requantize *q; /* NULL: int32 out */
    float x_scale, w_scale, multiplier;
    uint32_t *acc;  /* n, int32 out */
    uint8_t *codes; /* n, 8-bit out */
} qt_depthwise_line;

/* A padded copy of consecutive lines of an image. */
typedef struct {
    const uint8_t *x;         /* column 0 of line 0 of the copy, if that were inside */
    ptrdiff_t width;          /* from line to line of x */
    ptrdiff_t top, bottom;    /* lines of the copy from top up to bottom are inside, */
    ptrdiff_t first, last;    /* and of those the columns from first up to last */
    ptrdiff_t lines, pitch;   /* of the copy */
    uint8_t outside, flip;    /* the byte for what is outside; then all are flipped by exclusive or */
} qt_depthwise_lines;

typedef struct {
    const char *name; /* <what>c<kr>__<isa> */
    qt_isa isa;
    int kr;         /* taps of one 32-bit group: 4 of bytes, 2 of 16 bits */
    int max_stride; /* along the width; a dilation along it needs `any` */
    int any;        /* takes every stride and dilation */
    void (*run)(const qt_depthwise_line *t);
    /* The copy, if pitch <= QT_DEPTHWISE_STEP, which may write as much beyond it; or NULL */
    void (*lines)(const qt_depthwise_lines *l, uint8_t *copy);
} qt_depthwise;

/* n <= 4 weights of one byte as a group w' and the sum of the w'. Put together in a register: a wide load of bytes just
 * stored would wait for them. For the sum the bytes are made unsigned, w' + 128, and added in pairs. */
static inline uint32_t qt_depthwise_quad(const uint8_t *w, ptrdiff_t n, int w_sign, uint32_t *sum) {
    uint32_t g = w[0], flip = 0x80808080u;
    if (n > 1) g |= (uint32_t)w[1] << 8;
    if (n > 2) g |= (uint32_t)w[2] << 16;
    if (n > 3) g |= (uint32_t)w[3] << 24;
    else flip &= (1u << (8 * n)) - 1;
    const uint32_t high = w_sign ? g ^ flip : g, pairs = (high & 0x00FF00FF) + ((high >> 8) & 0x00FF00FF);
    *sum += (pairs & 0xFFFF) + (pairs >> 16) - 128 * (uint32_t)n;
    return w_sign ? g : g ^ flip;
}

/* The groups of a line of three, from four readable bytes w[0..3] in `bytes`, and the sum of the w'. */
static inline uint32_t qt_depthwise_three(uint32_t bytes, int w_sign, uint32_t *sum) {
    const uint32_t g = bytes & 0xFFFFFF, high = w_sign ? g ^ 0x808080 : g;
    *sum += (high & 0xFF) + ((high >> 8) & 0xFF) + (high >> 16) - 3 * 128;
    return w_sign ? g : g ^ 0x808080;
}

static inline uint32_t qt_little_endian(const uint8_t *w) {
    return w[0] | (uint32_t)w[1] << 8 | (uint32_t)w[2] << 16 | (uint32_t)w[3] << 24; /* one load */
}

/* Weights of one channel as groups; returns init. x_zero and w_zero are true values; the signs are 128 for a signed
 * operand, else 0. */
static uint32_t qt_depthwise_weights(const uint8_t *w, ptrdiff_t lines, ptrdiff_t taps, int kr, int x_sign, int w_sign,
                                     int32_t x_zero, int32_t w_zero, uint32_t bias, uint32_t *weights,
                                     uint32_t *w_zero_left) {
    const uint32_t zx = (uint32_t)(x_zero + x_sign), zw = (uint32_t)(w_zero - (w_sign ? 0 : 128));
    uint32_t sum = 0;
    *w_zero_left = zw;
    if (kr == 4 && taps == 3 && lines == 3) {
        weights[0] = qt_depthwise_three(qt_little_endian(w), w_sign, &sum);
        weights[1] = qt_depthwise_three(qt_little_endian(w + 3), w_sign, &sum);
        weights[2] = qt_depthwise_three(qt_little_endian(w + 5) >> 8, w_sign, &sum);
        return bias + zx * (9 * zw - sum);
    }
    for (ptrdiff_t r = 0; r < lines; ++r, w += taps)
        for (ptrdiff_t t = 0; t < taps; t += kr, ++weights) {
            if (kr == 4) {
                *weights = qt_depthwise_quad(w + t, taps - t < 4 ? taps - t : 4, w_sign, &sum);
            } else {
                const int32_t low = (w[t] ^ w_sign) - w_sign - w_zero;
                const int32_t high = t + 1 < taps ? (w[t + 1] ^ w_sign) - w_sign - w_zero : 0;
                *weights = ((uint32_t)low & 0xFFFF) | (uint32_t)high << 16;
            }
        }
    return kr == 2 ? bias : bias + zx * ((uint32_t)(lines * taps) * zw - sum);
}

/* Groups of one line with 1 for each weight, for the sums of x. */
static void qt_depthwise_ones(ptrdiff_t taps, uint32_t *ones) {
    for (ptrdiff_t t = 0; t < taps; t += 4) *ones++ = taps - t >= 4 ? 0x01010101u : (1u << (8 * (taps - t))) / 0xFF;
}

/* The copy of a channel by `lines` of the row, flipped; 0 if it must be made in the general way. */
static int qt_depthwise_fill(const qt_depthwise *row, const qt_conv *g, const qt_band *b, const uint8_t *x, int x_sign,
                             uint8_t *copy) {
    if (row->lines == NULL || b->pitch > QT_DEPTHWISE_STEP || g->kernel[0] != 1 || g->stride[1] != 1) return 0;
    const ptrdiff_t slice = b->slice * g->stride[0] - g->pad[0], line = b->line - g->pad[1];
    const ptrdiff_t column = b->column * g->stride[2] - g->pad[2];
    qt_depthwise_lines l = {.width = g->size[2], .lines = b->rows, .pitch = b->pitch, .outside = g->outside,
                            .flip = (uint8_t)x_sign};
    if (slice >= 0 && slice < g->size[0]) {
        l.x = (const uint8_t *)((uintptr_t)x + (uintptr_t)((slice * g->size[1] + line) * g->size[2] + column));
        l.top = line < 0 ? -line : 0;
        l.bottom = g->size[1] - line < b->rows ? g->size[1] - line : b->rows;
        l.first = column < 0 ? -column : 0;
        l.last = g->size[2] - column < b->pitch ? g->size[2] - column : b->pitch;
    }
    row->lines(&l, copy);
    return 1;
}

/* The copy of a channel from the bytes of x to the form of the kernel; `wide` for 16 bits. */
static void qt_depthwise_flip(uint8_t *copy, ptrdiff_t n) {
    for (ptrdiff_t i = 0; i < n; ++i) copy[i] ^= 0x80;
}

static void qt_depthwise_widen(const uint8_t *restrict copy, ptrdiff_t n, int x_sign, int32_t x_zero,
                               int16_t *restrict wide) {
    const uint8_t flip = (uint8_t)x_sign;
    const int16_t shift = (int16_t)(x_sign + x_zero);
    for (ptrdiff_t i = 0; i < n; ++i) wide[i] = (int16_t)((uint8_t)(copy[i] ^ flip) - shift);
}

#include "depthwise_scalar.h"
#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#include "depthwise_avx2.h"
#include "depthwise_avxvnni.h"
#include "depthwise_avx512vnni.h"
#endif

static const qt_depthwise *const QT_DEPTHWISE[] = {
#define QT_UKERNEL(name) &qt_depthwise_##name,
#include "depthwise.inc"
#undef QT_UKERNEL
};
enum { QT_DEPTHWISE_COUNT = sizeof(QT_DEPTHWISE) / sizeof(QT_DEPTHWISE[0]) };

/* The first row, best first, that the cap admits and the processor has. The scalar row always qualifies. */
static const qt_depthwise *qt_choose_depthwise(uint32_t features, qt_isa cap) {
    for (int i = 0; i < QT_DEPTHWISE_COUNT; ++i) {
        const uint32_t need = QT_ISAS[QT_DEPTHWISE[i]->isa].mask;
        if (QT_DEPTHWISE[i]->isa <= cap && (features & need) == need) return QT_DEPTHWISE[i];
    }
    return QT_DEPTHWISE[QT_DEPTHWISE_COUNT - 1];
}

/* The chosen row if it takes this stride and dilation, else the scalar row. */
static const qt_depthwise *qt_fit_depthwise(const qt_depthwise *row, ptrdiff_t stride, ptrdiff_t dilation,
                                            ptrdiff_t taps) {
    const int fits = row->any || (stride <= row->max_stride && (dilation == 1 || taps == 1));
    return fits ? row : QT_DEPTHWISE[QT_DEPTHWISE_COUNT - 1];
}

#endif
