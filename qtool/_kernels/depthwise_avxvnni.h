/* Depthwise kernel 32c4__avxvnni: bytes, four taps per VPDPBUSD ymm, 32 outputs (stride 2: 16) at a time.
 *
 * The body, and why it is exact, is in depthwise_dpbusd.inc.
 */
#ifndef QT_DEPTHWISE_AVXVNNI_H
#define QT_DEPTHWISE_AVXVNNI_H

#include <immintrin.h>

#define QT_NAME(x) x##__avxvnni
#define QT_TARGET __attribute__((target("avx2,avxvnni")))
#define QT_LANES 8
#define QT_V __m256i
#define QT_F __m256
#define QT_OP(op) _mm256_##op
#define QT_DP(acc, x, w) _mm256_dpbusd_avx_epi32(acc, x, w)
#define QT_LOAD(p) _mm256_loadu_si256((const __m256i *)(p))
#define QT_STORE(p, v) _mm256_storeu_si256((__m256i *)(p), v)
#define QT_BLEND(a, b, k) _mm256_blendv_epi8(a, b, _mm256_set1_epi32((int32_t)(0xFFu << (8 * (k)))))

/* The low 16 bits of each lane: the 16-bit halves are values 0..65535 after the mask, so PACKUSDW keeps them. */
__attribute__((target("avx2,avxvnni"))) static inline void qt_dw_narrow__avxvnni(uint8_t *p, __m256i v) {
    v = _mm256_and_si256(v, _mm256_set1_epi32(0xFFFF));
    v = _mm256_permute4x64_epi64(_mm256_packus_epi32(v, v), 0x08);
    _mm_storeu_si128((__m128i *)p, _mm256_castsi256_si128(v));
}
#define QT_NARROW(p, v) qt_dw_narrow__avxvnni(p, v)
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

static const qt_depthwise qt_depthwise_32c4__avxvnni = {
    .name = "32c4__avxvnni",
    .isa = QT_ISA_AVXVNNI,
    .kr = 4,
    .max_stride = 2,
    .run = qt_depthwise_run__avxvnni,
};

#endif
