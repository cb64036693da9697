/* Statistics with AVX-512 F, BW, DQ and VL: 16 float32 or 32 half-precision elements per instruction.
 *
 * instructions  as with AVX2, with masks (vpcmpd, vptestnmd) where AVX2 blends
 * the trick     GCC prefers 256 bits for most processors; these loops are short and wait for memory, so 512 pays
 * exactness     integers only; sums of |x| in double, each lane a fixed sequence (statistics_body.h)
 */
#ifndef QT_STATISTICS_AVX512VNNI_H
#define QT_STATISTICS_AVX512VNNI_H

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))

#define QT_STATS(name) name##__avx512vnni
#if defined(__clang__)
#define QT_STATS_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#else
#define QT_STATS_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")))
#endif
#define QT_STATS_NAME "loops__avx512vnni"
#define QT_STATS_ISA QT_ISA_AVX512VNNI
#include "statistics_body.h"
#undef QT_STATS
#undef QT_STATS_TARGET
#undef QT_STATS_NAME
#undef QT_STATS_ISA

#endif
#endif
