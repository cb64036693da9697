/* Convolution: a matrix product whose left operand is gathered, or, with one input channel per group, a direct sum.
 *
 * Index 0, 1, 2 of every array is depth, height, width; 1-D and 2-D convolutions have leading axes of length 1.
 *
 *     y[n,m,o] = sum over c,t of  x[n, c, o*stride - pad + t*dilation] * w[m,c,t]
 *
 * Outside of x lies the zero point of x, so that padding contributes (zp - zp) * w = 0.
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

/* Output positions [*first, *last) along width whose sample at kernel tap t lies inside x, within [o0, o1). */
static inline void qt_conv_inside(const qt_conv *g, ptrdiff_t t, ptrdiff_t o0, ptrdiff_t o1, ptrdiff_t *first,
                                  ptrdiff_t *last) {
    const ptrdiff_t s = g->stride[2], shift = t * g->dilation[2] - g->pad[2]; /* sample = o*s + shift */
    ptrdiff_t lo = shift >= 0 ? 0 : (-shift + s - 1) / s;
    ptrdiff_t hi = g->size[2] - shift <= 0 ? 0 : (g->size[2] - shift + s - 1) / s;
    lo = lo < o0 ? o0 : lo > o1 ? o1 : lo;
    hi = hi < lo ? lo : hi > o1 ? o1 : hi;
    *first = lo, *last = hi;
}

/* Columns of the gathered matrix for `rows` consecutive output positions from `position` on: dst[k * ld + i].
 *
 * k runs over (channel, taps) as in w. K is the outer axis of dst because neighbouring positions are neighbours in x:
 * with stride 1 each run is one memcpy. The packer transposes it out of the cache.
 */
static void qt_im2col(const qt_conv *g, const uint8_t *x, ptrdiff_t position, ptrdiff_t rows, uint8_t *dst,
                      ptrdiff_t ld) {
    const ptrdiff_t plane = g->size[1] * g->size[2], volume = g->size[0] * plane;
    for (ptrdiff_t done = 0; done < rows;) { /* one run: consecutive positions of one output line */
        const ptrdiff_t p = position + done;
        const ptrdiff_t o0 = p % g->out[2], line = p / g->out[2], oh = line % g->out[1], od = line / g->out[1];
        const ptrdiff_t run = g->out[2] - o0 < rows - done ? g->out[2] - o0 : rows - done;
        uint8_t *d = dst + done;
        for (ptrdiff_t c = 0; c < g->channels; ++c)
            for (ptrdiff_t td = 0; td < g->kernel[0]; ++td) {
                const ptrdiff_t id = od * g->stride[0] - g->pad[0] + td * g->dilation[0];
                for (ptrdiff_t th = 0; th < g->kernel[1]; ++th) {
                    const ptrdiff_t ih = oh * g->stride[1] - g->pad[1] + th * g->dilation[1];
                    const int inside = id >= 0 && id < g->size[0] && ih >= 0 && ih < g->size[1];
                    for (ptrdiff_t tw = 0; tw < g->kernel[2]; ++tw, d += ld) {
                        ptrdiff_t first = o0, last = o0;
                        if (inside) qt_conv_inside(g, tw, o0, o0 + run, &first, &last);
                        memset(d, g->outside, (size_t)(first - o0));
                        if (last > first) {
                            const ptrdiff_t shift = tw * g->dilation[2] - g->pad[2], s = g->stride[2];
                            const uint8_t *from = x + c * volume + id * plane + ih * g->size[2] + first * s + shift;
                            if (s == 1) memcpy(d + (first - o0), from, (size_t)(last - first));
                            else
                                for (ptrdiff_t i = 0; i < last - first; ++i) d[first - o0 + i] = from[i * s];
                        }
                        memset(d + (last - o0), g->outside, (size_t)(o0 + run - last));
                    }
                }
            }
        done += run;
    }
}

/* One output line (od, oh) of one channel, one input channel: acc[out width], with zero points and bias applied.
 *
 * Direct: a product with K = 9 and one column per group would spend its time on packing. Padding is skipped.
 * Bytes are widened with x_sign and w_sign (128 if signed, else 0): value = (byte ^ sign) - sign.
 */
static void qt_depthwise_line(const qt_conv *g, const uint8_t *x, const uint8_t *w, int x_sign, int w_sign, int32_t zx,
                              int32_t zw, uint32_t bias, ptrdiff_t od, ptrdiff_t oh, uint32_t *restrict acc) {
    for (ptrdiff_t o = 0; o < g->out[2]; ++o) acc[o] = bias;
    const int32_t x_shift = x_sign + zx;
    for (ptrdiff_t td = 0; td < g->kernel[0]; ++td) {
        const ptrdiff_t id = od * g->stride[0] - g->pad[0] + td * g->dilation[0];
        if (id < 0 || id >= g->size[0]) continue;
        for (ptrdiff_t th = 0; th < g->kernel[1]; ++th) {
            const ptrdiff_t ih = oh * g->stride[1] - g->pad[1] + th * g->dilation[1];
            if (ih < 0 || ih >= g->size[1]) continue;
            for (ptrdiff_t tw = 0; tw < g->kernel[2]; ++tw) {
                ptrdiff_t first, last;
                qt_conv_inside(g, tw, 0, g->out[2], &first, &last);
                if (last <= first) continue; /* and never form a pointer outside of x */
                const ptrdiff_t tap = (td * g->kernel[1] + th) * g->kernel[2] + tw, s = g->stride[2];
                const int32_t weight = (w[tap] ^ w_sign) - w_sign - zw;
                const uint8_t *from = x + (id * g->size[1] + ih) * g->size[2] + first * s + tw * g->dilation[2] - g->pad[2];
                if (s == 1)
                    for (ptrdiff_t i = 0; i < last - first; ++i)
                        acc[first + i] += (uint32_t)(weight * ((from[i] ^ x_sign) - x_shift));
                else
                    for (ptrdiff_t i = 0; i < last - first; ++i)
                        acc[first + i] += (uint32_t)(weight * ((from[i * s] ^ x_sign) - x_shift));
            }
        }
    }
}

#endif
