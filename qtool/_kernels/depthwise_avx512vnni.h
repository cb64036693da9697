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

static const qt_depthwise qt_depthwise_64c4__avx512vnni = {
    .name = "64c4__avx512vnni",
    .isa = QT_ISA_AVX512VNNI,
    .kr = 4,
    .max_stride = 2,
    .run = qt_depthwise_run__avx512vnni,
};

#endif
