/* Convolution: the padded copy of an image in which every kernel tap is one contiguous run of positions.
 *
 * Index 0, 1, 2 of every array is depth, height, width; 1-D and 2-D convolutions have leading axes of length 1.
 *
 *     y[n,m,o] = sum over c,t of  x[n, c, o*stride - pad + t*dilation] * w[m,c,t]
 *
 * Outside of x lies the zero point of x, so that padding contributes (zp - zp) * w = 0.
 *
 * The copy. A band is a block of output lines of one output slice. Its input lines are laid out with one pitch for all
 * lines, padding included, and lines (and, for matrix products, columns) are sorted by their remainder modulo the stride.
 * Then output position (line i, column j) is the flat index f = i*pitch + j, and its sample at tap t is
 * copy[offset(t) + f]: whatever the stride and the dilation, a tap is a constant offset. So neither kernel gathers: the
 * rows of the matrix that im2col would build are runs of the copy. The price is that a few flat indices per line, those
 * that straddle the end of a line, are computed and thrown away.
 */
#ifndef QT_CONV_H
#define QT_CONV_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct {
    ptrdiff_t size[3], kernel[3], out[3], stride[3], pad[3], dilation[3]; /* pad: at the beginning of the axis */
    ptrdiff_t channels; /* input channels per group */
    uint8_t outside;    /* the byte of the zero point of x */
} qt_conv;

typedef struct {
    ptrdiff_t slice, line, column; /* first output position */
    ptrdiff_t lines, columns;      /* extent in output positions */
    ptrdiff_t phases;              /* columns are sorted by their remainder modulo this: the stride, or 1 */
    ptrdiff_t rows, pitch;         /* lines of one phase of the copy, and bytes of a line */
    ptrdiff_t slice_bytes, bytes;  /* of one input slice, and of all slices of the kernel */
} qt_band;

/* Fill in rows, pitch and sizes. phases is 1 or the stride of the width. */
static void qt_band_layout(const qt_conv *g, qt_band *b) {
    const ptrdiff_t s = g->stride[2], reach = (g->kernel[2] - 1) * g->dilation[2];
    b->rows = b->lines + (g->kernel[1] - 1) * g->dilation[1] / g->stride[1];
    b->pitch = b->phases == 1 ? ((b->columns - 1) * s + reach + s) / s * s : b->columns + reach / s;
    b->slice_bytes = g->stride[1] * b->phases * b->rows * b->pitch;
    b->bytes = g->kernel[0] * b->slice_bytes;
}

/* offset(t) of a tap in the copy of a channel. */
static ptrdiff_t qt_band_offset(const qt_conv *g, const qt_band *b, ptrdiff_t td, ptrdiff_t th, ptrdiff_t tw) {
    const ptrdiff_t h = th * g->dilation[1], w = tw * g->dilation[2], sh = g->stride[1];
    return td * b->slice_bytes + ((h % sh * b->phases + w % b->phases) * b->rows + h / sh) * b->pitch + w / b->phases;
}

/* n bytes, few: a call of memcpy would take longer than the copy. */
static inline void qt_copy_short(uint8_t *restrict d, const uint8_t *restrict s, ptrdiff_t n) {
    if (n >= 16) {
        for (ptrdiff_t i = 0; i < n - 16; i += 16) memcpy(d + i, s + i, 16);
        memcpy(d + n - 16, s + n - 16, 16);
    } else if (n >= 8) {
        memcpy(d, s, 8);
        memcpy(d + n - 8, s + n - 8, 8);
    } else if (n >= 4) {
        memcpy(d, s, 4);
        memcpy(d + n - 4, s + n - 4, 4);
    } else {
        for (ptrdiff_t i = 0; i < n; ++i) d[i] = s[i];
    }
}

/* Lines of a flat block with a pitch to others with another. Where the lines of `to` follow each other, 16 bytes at a time:
 * what is written too much is the beginning of the next line, which comes next. `from` is readable 16 bytes beyond. */
static void qt_copy_lines(const uint8_t *restrict from, ptrdiff_t from_pitch, uint8_t *restrict to, ptrdiff_t to_pitch,
                          ptrdiff_t lines, ptrdiff_t bytes) {
    ptrdiff_t i = 0;
    if (to_pitch == bytes)
        for (; (lines - i) * bytes >= bytes + 16; ++i)
            for (ptrdiff_t j = 0; j < bytes; j += 16) memcpy(to + i * bytes + j, from + i * from_pitch + j, 16);
    for (; i < lines; ++i) qt_copy_short(to + i * to_pitch, from + i * from_pitch, bytes);
}

/* ceil(a / s) for a >= 0; the usual stride without the division. */
static inline ptrdiff_t qt_ceil(ptrdiff_t a, ptrdiff_t s) { return s == 1 ? a : (a + s - 1) / s; }

/* Whether some tap of an axis has this remainder modulo the stride. */
static inline int qt_phase_used(const qt_conv *g, int axis, ptrdiff_t phases, ptrdiff_t phase) {
    if (phases == 1) return 1;
    for (ptrdiff_t t = 0; t < g->kernel[axis] && t < phases; ++t)
        if (t * g->dilation[axis] % phases == phase) return 1;
    return 0;
}

/* The copy of one channel; x is its volume. */
static void qt_band_fill(const qt_conv *g, const qt_band *b, const uint8_t *restrict x, uint8_t *restrict copy) {
    const ptrdiff_t sh = g->stride[1], cp = b->phases, width = g->size[2];
    memset(copy, g->outside, (size_t)b->bytes);
    for (ptrdiff_t td = 0; td < g->kernel[0]; ++td) {
        const ptrdiff_t id = b->slice * g->stride[0] - g->pad[0] + td * g->dilation[0];
        if (id < 0 || id >= g->size[0]) continue;
        for (ptrdiff_t pw = 0; pw < cp; ++pw) {
            /* column i of the copy is column i*cp + shift of x */
            const ptrdiff_t shift = b->column * g->stride[2] - g->pad[2] + pw;
            const ptrdiff_t first = shift >= 0 ? 0 : qt_ceil(-shift, cp);
            ptrdiff_t last = width - shift <= 0 ? 0 : qt_ceil(width - shift, cp);
            last = last > b->pitch ? b->pitch : last;
            if (last <= first || !qt_phase_used(g, 2, cp, pw)) continue;
            for (ptrdiff_t ph = 0; ph < sh; ++ph) {
                if (!qt_phase_used(g, 1, sh, ph)) continue;
                /* row i of the copy is line i*sh + top of x */
                const ptrdiff_t top = b->line * sh - g->pad[1] + ph;
                ptrdiff_t i = top >= 0 ? 0 : qt_ceil(-top, sh);
                ptrdiff_t stop = g->size[1] - top <= 0 ? 0 : qt_ceil(g->size[1] - top, sh);
                stop = stop > b->rows ? b->rows : stop;
                if (i >= stop) continue;
                const uint8_t *from = x + (id * g->size[1] + i * sh + top) * width + first * cp + shift;
                uint8_t *to = copy + td * b->slice_bytes + ((ph * cp + pw) * b->rows + i) * b->pitch + first;
                for (; i < stop; ++i, from += sh * width, to += b->pitch) {
                    if (cp == 1) qt_copy_short(to, from, last - first);
                    else if (cp == 2)
                        for (ptrdiff_t j = 0; j < last - first; ++j) to[j] = from[2 * j];
                    else
                        for (ptrdiff_t j = 0; j < last - first; ++j) to[j] = from[j * cp];
                }
            }
        }
    }
}

#endif
