/* Depthwise kernel 64c4__avx512vnni: bytes, four taps per VPDPBUSD zmm, 64 outputs (stride 2: 32) at a time.
 *
 * Per 64 outputs of a 3x3 kernel: 12 VPDPBUSD with unaligned loads, four requantizations, one store. The body, and why it
 * is exact, is in depthwise_dpbusd.inc.
 */
#ifndef QT_DEPTHWISE_AVX512VNNI_H
#define QT_DEPTHWISE_AVX512VNNI_H

#include <immintrin.h>

#define QT_NAME(x) x##__avx512vnni
#define QT_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")))
#define QT_LANES 16
#define QT_V __m512i
#define QT_F __m512
#define QT_OP(op) _mm512_##op
#define QT_DP(acc, x, w) _mm512_dpbusd_epi32(acc, x, w)
#define QT_LOAD(p) _mm512_loadu_si512(p)
#define QT_STORE(p, v) _mm512_storeu_si512(p, v)
#define QT_BLEND(a, b, k) _mm512_mask_blend_epi8(0x1111111111111111ull << (k), a, b)
#define QT_NARROW(p, v) _mm256_storeu_si256((__m256i *)(p), _mm512_cvtepi32_epi16(v))
#include "depthwise_dpbusd.inc"
#undef QT_NAME
#undef QT_TARGET
#undef QT_LANES
#undef QT_V
#undef QT_F
#undef QT_OP
#undef QT_DP
#undef QT_LOAD
#undef QT_STORE
#undef QT_BLEND
#undef QT_NARROW

/* One masked load and one store per line, ascending: what a store writes too much is the next line. The load does not touch
 * what its mask leaves out, so that the address of a padded line may begin before x. */
#define QT_DEPTHWISE_LINES(PREFIX, SUFFIX, V, MASK)                                                                      \
    do {                                                                                                               \
        const V outside = PREFIX##set1_epi8((char)l->outside), flip = PREFIX##set1_epi8((char)l->flip);                 \
        const V pad = PREFIX##xor_##SUFFIX(outside, flip);                                                             \
        for (; i < top; ++i, copy += l->pitch) PREFIX##storeu_##SUFFIX((void *)copy, pad);                              \
        for (; i < bottom; ++i, copy += l->pitch) {                                                                    \
            const void *from = (const void *)((uintptr_t)l->x + (uintptr_t)(i * l->width));                            \
            const V v = PREFIX##mask_loadu_epi8(outside, (MASK)mask, from);                                            \
            PREFIX##storeu_##SUFFIX((void *)copy, PREFIX##xor_##SUFFIX(v, flip));                                       \
        }                                                                                                              \
        for (; i < l->lines; ++i, copy += l->pitch) PREFIX##storeu_##SUFFIX((void *)copy, pad);                         \
    } while (0)

__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni"))) static void
qt_depthwise_copy__avx512vnni(const qt_depthwise_lines *l, uint8_t *copy) {
    const ptrdiff_t columns = l->last > l->first ? l->last - l->first : 0;
    const uint64_t mask = columns == 0 ? 0 : (~0ull >> (64 - columns)) << l->first;
    const ptrdiff_t top = l->top < l->lines ? l->top : l->lines, bottom = columns == 0 ? top : l->bottom;
    ptrdiff_t i = 0;
    if (l->pitch <= 16) QT_DEPTHWISE_LINES(_mm_, si128, __m128i, __mmask16);
    else if (l->pitch <= 32) QT_DEPTHWISE_LINES(_mm256_, si256, __m256i, __mmask32);
    else QT_DEPTHWISE_LINES(_mm512_, si512, __m512i, __mmask64);
}
#undef QT_DEPTHWISE_LINES

static const qt_depthwise qt_depthwise_64c4__avx512vnni = {
    .name = "64c4__avx512vnni",
    .isa = QT_ISA_AVX512VNNI,
    .kr = 4,
    .max_stride = 2,
    .run = qt_depthwise_run__avx512vnni,
    .lines = qt_depthwise_copy__avx512vnni,
};

#endif
