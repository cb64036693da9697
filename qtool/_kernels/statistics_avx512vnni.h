/* Statistics with AVX-512 F, BW, DQ and VL: 16 float32 or 32 half-precision elements per instruction.
 *
 * instructions  as with AVX2, with masks (vpcmpd, vptestnmd) where AVX2 blends
 * the trick     GCC prefers 256 bits for most processors; these loops are short and wait for memory, so 512 pays
 * memory        the first pass of min_max_32 does so little that one core's outstanding loads bound it. Four streams, a
 *               quarter of the block each, keep the hardware's page-wise prefetcher busy on four pages, and a software
 *               prefetch 2 KiB ahead goes over the ends of pages, where it stops;
 *               measured a quarter (64 MiB) to a half (4 MiB) faster
 * exactness     integers only; sums of |x| in double, each lane a fixed sequence (statistics_body.h)
 */
#ifndef QT_STATISTICS_AVX512VNNI_H
#define QT_STATISTICS_AVX512VNNI_H

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))

#include <immintrin.h>

#define QT_STATS(name) name##__avx512vnni
#if defined(__clang__)
#define QT_STATS_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#else
#define QT_STATS_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")))
#endif
#define QT_STATS_HAS_SCAN_32
#define QT_STATS_NAME "loops__avx512vnni"
#define QT_STATS_ISA QT_ISA_AVX512VNNI

typedef struct {
    __m512i top, bottom, zeros; /* zeros counts down */
} qt_scan__avx512vnni;

QT_STATS_TARGET static inline void qt_scan_step__avx512vnni(qt_scan__avx512vnni *s, const float *x, __mmask16 lanes) {
    const __m512i u = _mm512_maskz_loadu_epi32(lanes, x);
    const __mmask16 zero = _mm512_mask_testn_epi32_mask(lanes, u, _mm512_set1_epi32(0x7FFFFFFF));
    s->top = _mm512_mask_max_epi32(s->top, lanes, s->top, u);
    s->bottom = _mm512_max_epu32(s->bottom, u);
    s->zeros = _mm512_mask_add_epi32(s->zeros, zero, s->zeros, _mm512_set1_epi32(-1));
}

QT_STATS_TARGET static void qt_scan_32__avx512vnni(const float *x, ptrdiff_t n, int32_t *top, uint32_t *bottom,
                                                  int32_t *zeros) {
    const ptrdiff_t quarter = n / 128 * 32;
    qt_scan__avx512vnni a = {_mm512_set1_epi32(INT32_MIN), _mm512_setzero_si512(), _mm512_setzero_si512()}, b = a;
    for (ptrdiff_t i = 0; i < quarter; i += 32) {
        for (int s = 0; s < 4; ++s) {
            const float *p = x + s * quarter + i;
            _mm_prefetch((const char *)((uintptr_t)p + QT_STATS_AHEAD), _MM_HINT_T1);
            qt_scan_step__avx512vnni(&a, p, 0xFFFF);
            _mm_prefetch((const char *)((uintptr_t)p + QT_STATS_AHEAD + 64), _MM_HINT_T1);
            qt_scan_step__avx512vnni(&b, p + 16, 0xFFFF);
        }
    }
    for (ptrdiff_t i = 4 * quarter; i < n; i += 16)
        qt_scan_step__avx512vnni(&a, x + i, n - i < 16 ? (__mmask16)((1u << (n - i)) - 1) : (__mmask16)0xFFFF);
    *top = _mm512_reduce_max_epi32(_mm512_max_epi32(a.top, b.top));
    *bottom = _mm512_reduce_max_epu32(_mm512_max_epu32(a.bottom, b.bottom));
    *zeros = -_mm512_reduce_add_epi32(_mm512_add_epi32(a.zeros, b.zeros));
}

#define QT_STATS_HAS_TALLY
QT_STATS_TARGET static int32_t qt_tally__avx512vnni(const float *, ptrdiff_t, int, int32_t, int32_t *, int64_t *,
                                                   int32_t *, int32_t *, const int32_t *, ptrdiff_t, unsigned char *);

#include "statistics_body.h"
#include "tally_avx512vnni.h"
#undef QT_STATS
#undef QT_STATS_TARGET
#undef QT_STATS_HAS_SCAN_32
#undef QT_STATS_HAS_TALLY
#undef QT_STATS_NAME
#undef QT_STATS_ISA

#endif
#endif
