/* Statistics with AVX2: 8 float32 or 16 half-precision elements per instruction, made by the compiler.
 *
 * instructions  vpminsd/vpmaxsd on ordered keys (vpminsw/vpmaxsw for 16 bits), vpcmpeqd + vpsubd to count, vpsravd for
 *               the bins: one shift per lane is what the baseline lacks
 * exactness     integers only; sums of |x| in double, each lane a fixed sequence (statistics_body.h)
 */
#ifndef QT_STATISTICS_AVX2_H
#define QT_STATISTICS_AVX2_H

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))

#define QT_STATS(name) name##__avx2
#define QT_STATS_TARGET __attribute__((target("avx2")))
#define QT_STATS_NAME "loops__avx2"
#define QT_STATS_ISA QT_ISA_AVX2
#include "statistics_body.h"
#undef QT_STATS
#undef QT_STATS_TARGET
#undef QT_STATS_NAME
#undef QT_STATS_ISA

#endif
#endif
