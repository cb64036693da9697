/* The table of statistics kernels: counts, ranges, bins and sums of |x|.
 *
 * All rows are the same loops (statistics_body.h), compiled for their ISA; the first pass of min_max_32, which waits for
 * memory, is written out where there are vectors, and so is tally with AVX-512. Range keys: the bits of a float with those
 * below the sign inverted if it is negative, as a signed integer, have the order of the floats (-0 just below +0).
 *
 * To add an ISA: one header that defines qt_statistics_loops__<isa> and one line in statistics.inc.
 */
#ifndef QT_STATISTICS_H
#define QT_STATISTICS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "cpu.h"
#include "tally.h"

enum {
    QT_STATS_BLOCK = 65536,   /* elements of one call of min_max_32: the block stays in the second cache */
    QT_STATS_BLOCK_16 = 4096, /* of min_max_16: counts fit 16 bits, the block fits the first cache */
    QT_STATS_AHEAD = 2048,    /* bytes from a load of min_max_32 to the line that is fetched meanwhile */
    QT_STATS_NEAR = 1024,     /* from a load of tally to the line that is fetched into the first cache */
    QT_STATS_FAR = 4096,      /* and into the second */
    QT_STATS_LANES = 16,      /* partial sums of a row; reference.abs_mean adds in the same order */
};

typedef struct {
    const char *name; /* loops__<isa> */
    qt_isa isa;
    void (*widen)(const uint16_t *x, int bfloat, ptrdiff_t n, float *t);
    void (*min_max_32)(const float *x, ptrdiff_t n, int64_t *counts, int32_t *least, int32_t *most);
    void (*min_max_16)(const uint16_t *x, int16_t inf, ptrdiff_t n, int64_t *counts, int16_t *least, int16_t *most);
    int32_t (*bins)(const float *x, ptrdiff_t n, int k, int32_t half, int32_t *bins);
    int32_t (*tally)(const float *x, ptrdiff_t n, int k, int32_t half, int32_t *bins, int64_t *counts, int32_t *least,
                     int32_t *most, const int32_t *known, ptrdiff_t m, unsigned char *lanes);
    void (*empty)(unsigned char *lanes, ptrdiff_t first, ptrdiff_t last, int64_t *counts);
    void (*absmax_columns)(const float *x, ptrdiff_t n, int32_t *best);
    int32_t (*absmax_row)(const float *x, ptrdiff_t n, int32_t best);
    void (*abs_sum_columns)(const float *x, ptrdiff_t n, double *sum);
    void (*abs_sum_row)(const float *x, ptrdiff_t n, double *lanes);
} qt_statistics;

/* Asks for the lines of what will be read next, while something else keeps the core from reading. */
static inline void qt_fetch_ahead(const void *next, ptrdiff_t bytes) {
#if defined(__GNUC__) || defined(__clang__)
    for (ptrdiff_t i = 0; i < bytes; i += 64) __builtin_prefetch((const char *)next + i, 0, 2);
#else
    (void)next;
    (void)bytes;
#endif
}

static inline uint32_t qt_bits_of(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static inline float qt_float_of(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

#include "statistics_avx2.h"
#include "statistics_avx512vnni.h"
#include "statistics_scalar.h"

static const qt_statistics *const QT_STATISTICS[] = {
#define QT_UKERNEL(isa) &qt_statistics_loops__##isa,
#include "statistics.inc"
#undef QT_UKERNEL
};
enum { QT_STATISTICS_COUNT = sizeof(QT_STATISTICS) / sizeof(QT_STATISTICS[0]) };

/* The first row, best first, that the cap admits and the processor has. The scalar row always qualifies. */
static const qt_statistics *qt_choose_statistics(uint32_t features, qt_isa cap) {
    for (int i = 0; i < QT_STATISTICS_COUNT; ++i) {
        const uint32_t need = QT_ISAS[QT_STATISTICS[i]->isa].mask;
        if (QT_STATISTICS[i]->isa <= cap && (features & need) == need) return QT_STATISTICS[i];
    }
    return QT_STATISTICS[QT_STATISTICS_COUNT - 1];
}

#endif
