/* The loops of the statistics kernels, in C that compilers vectorise. Included once per ISA, without a guard, between
 * definitions of QT_STATS(name) (adds the suffix of the ISA) and QT_STATS_TARGET (its target attribute).
 *
 * Everything works on the bits of the numbers, in integers: nothing rounds, and a processor mode that flushes
 * subnormals to zero changes nothing.
 */

/* float32 of n float16 (bfloat == 0) or bfloat16 values. */
QT_STATS_TARGET static void QT_STATS(qt_widen)(const uint16_t *restrict x, int bfloat, ptrdiff_t n, float *restrict t) {
    if (bfloat) {
        for (ptrdiff_t i = 0; i < n; ++i) t[i] = qt_float_of((uint32_t)x[i] << 16);
        return;
    }
    for (ptrdiff_t i = 0; i < n; ++i) {
        const uint32_t h = x[i], magnitude = h & 0x7FFF, exponent = h & 0x7C00;
        const uint32_t subnormal = qt_bits_of((float)(int32_t)(h & 0x3FF) * 0x1p-24f); /* normal as a float32 */
        const uint32_t bias = exponent == 0x7C00 ? 0x70000000 : 0x38000000; /* from 15 to 127; Inf and NaN to 255 */
        const uint32_t is_normal = 0u - (uint32_t)(exponent != 0); /* a mask: GCC does not vectorise this choice as ?: */
        const uint32_t u = (((magnitude << 13) + bias) & is_normal) | (subnormal & ~is_normal);
        t[i] = qt_float_of(u | (h & 0x8000) << 16);
    }
}

/* The first pass of min_max_32: the largest bits as signed and as unsigned integers, and the number of zeros. */
#ifndef QT_STATS_HAS_SCAN_32
QT_STATS_TARGET static void QT_STATS(qt_scan_32)(const float *restrict x, ptrdiff_t n, int32_t *top, uint32_t *bottom,
                                                int32_t *zeros) {
    int32_t most = INT32_MIN, count = 0;
    uint32_t least = 0;
    for (ptrdiff_t i = 0; i < n; ++i) {
        const uint32_t u = qt_bits_of(x[i]);
        count += (u & 0x7FFFFFFF) == 0;
        most = (int32_t)u > most ? (int32_t)u : most;
        least = u > least ? u : least;
    }
    *top = most;
    *bottom = least;
    *zeros = count;
}
#endif

/* What the first pass has found in x: adds NaN, +Inf, -Inf and zero counts, extends the range of keys.
 *
 * The largest signed integer is the largest number, unless all are below zero; the largest unsigned one is the least
 * number, unless none is. That is two instructions per vector, and it shows NaN and Inf. What it leaves open, the smallest
 * magnitude of a block with one sign and no zero, is sought in the cache.
 */
QT_STATS_TARGET static void QT_STATS(qt_extend_32)(const float *restrict x, ptrdiff_t n, int32_t top, uint32_t bottom,
                                                  int32_t zeros, int64_t *restrict counts, int32_t *least,
                                                  int32_t *most) {
    const int32_t inf = 0x7F800000;
    int32_t low, high;
    if (top >= inf || bottom >= 0xFF800000) { /* again, with an eye on NaN and Inf; the block is in the cache */
        int32_t nans = 0, infs = 0, negative = 0;
        low = *least;
        high = *most;
        for (ptrdiff_t i = 0; i < n; ++i) {
            const int32_t s = (int32_t)qt_bits_of(x[i]), magnitude = s & 0x7FFFFFFF;
            const int32_t key = s ^ ((s >> 31) & 0x7FFFFFFF);
            const int32_t below = magnitude < inf ? key : inf, above = magnitude < inf ? key : INT32_MIN;
            nans += magnitude > inf;
            infs += magnitude == inf;
            negative += s == (int32_t)0xFF800000;
            low = below < low ? below : low;
            high = above > high ? above : high;
        }
        counts[0] += nans;
        counts[1] += infs - negative;
        counts[2] += negative;
    } else {
        int32_t nearest = 0; /* the number nearest to zero of a block with one sign */
        if (top < 0 || (bottom <= INT32_MAX && zeros == 0)) {
            nearest = INT32_MAX;
            for (ptrdiff_t i = 0; i < n; ++i) {
                const int32_t s = (int32_t)qt_bits_of(x[i]);
                nearest = s < nearest ? s : nearest;
            }
        }
        low = bottom <= INT32_MAX ? nearest : (int32_t)(bottom ^ INT32_MAX);
        high = top < 0 ? nearest ^ INT32_MAX : top;
        low = low < *least ? low : *least;
        high = high > *most ? high : *most;
    }
    counts[3] += zeros;
    *least = low;
    *most = high;
}

/* One block (1 <= n <= QT_STATS_BLOCK) of float32. */
QT_STATS_TARGET static void QT_STATS(qt_min_max_32)(const float *restrict x, ptrdiff_t n, int64_t *restrict counts,
                                                   int32_t *least, int32_t *most) {
    int32_t top, zeros;
    uint32_t bottom;
    QT_STATS(qt_scan_32)(x, n, &top, &bottom, &zeros);
    QT_STATS(qt_extend_32)(x, n, top, bottom, zeros, counts, least, most);
}

/* The same for 16-bit floats (n <= QT_STATS_BLOCK_16), whose infinity has the bits `inf`; keys are those of 16 bits. */
QT_STATS_TARGET static void QT_STATS(qt_min_max_16)(const uint16_t *restrict x, int16_t inf, ptrdiff_t n,
                                                   int64_t *restrict counts, int16_t *least, int16_t *most) {
    int16_t low, high, top = INT16_MIN, zeros = 0;
    uint16_t bottom = 0;
    for (ptrdiff_t i = 0; i < n; ++i) {
        const uint16_t u = x[i];
        zeros = (int16_t)(zeros + ((u & 0x7FFF) == 0));
        top = (int16_t)u > top ? (int16_t)u : top;
        bottom = u > bottom ? u : bottom;
    }
    if (top >= inf || bottom >= (inf | 0x8000)) {
        int16_t nans = 0, infs = 0, negative = 0;
        low = *least;
        high = *most;
        for (ptrdiff_t i = 0; i < n; ++i) {
            const int16_t s = (int16_t)x[i], magnitude = (int16_t)(s & 0x7FFF);
            const int16_t key = (int16_t)(s ^ ((s >> 15) & 0x7FFF));
            const int16_t below = magnitude < inf ? key : inf, above = magnitude < inf ? key : INT16_MIN;
            nans = (int16_t)(nans + (magnitude > inf));
            infs = (int16_t)(infs + (magnitude == inf));
            negative = (int16_t)(negative + (s == (int16_t)(inf | INT16_MIN)));
            low = below < low ? below : low;
            high = above > high ? above : high;
        }
        counts[0] += nans;
        counts[1] += infs - negative;
        counts[2] += negative;
    } else {
        int16_t nearest = 0;
        if (top < 0 || (bottom <= INT16_MAX && zeros == 0)) {
            nearest = INT16_MAX;
            for (ptrdiff_t i = 0; i < n; ++i) nearest = (int16_t)x[i] < nearest ? (int16_t)x[i] : nearest;
        }
        low = bottom <= INT16_MAX ? nearest : (int16_t)(bottom ^ INT16_MAX);
        high = top < 0 ? (int16_t)(nearest ^ INT16_MAX) : top;
        low = low < *least ? low : *least;
        high = high > *most ? high : *most;
    }
    counts[3] += zeros;
    *least = low;
    *most = high;
}

/* bins[i] = floor(x[i] * 2^k) + half; returns the bits of the largest |x|. A bin is valid if |x * 2^k| <= half <= 2^16.
 *
 * |x| = m * 2^(e-150) with m < 2^24 and e >= 1, so floor(|x| * 2^k) = m >> (150-k-e). A number below zero has the floor
 * -ceil(m / 2^s) = ~((m-1) >> s), also for m = 0: (m + g) >> s ^ g, g the sign as 0 or -1, serves both signs and -0.
 * Of a valid bin, s is 7 or more if x is normal; a subnormal has e = 1 and s = 149-k, which is below zero if the bins are
 * finer than the subnormals: then m is moved up by k-149 <= 16 instead, and no normal number is valid.
 */
QT_STATS_TARGET static int32_t QT_STATS(qt_bins)(const float *restrict x, ptrdiff_t n, int k, int32_t half,
                                                int32_t *restrict bins) {
    const int32_t base = 150 - k, up = k > 149 ? k - 149 : 0;
    int32_t top = 0;
    for (ptrdiff_t i = 0; i < n; ++i) {
        const int32_t s = (int32_t)qt_bits_of(x[i]), magnitude = s & 0x7FFFFFFF, sign = s >> 31;
        const int32_t exponent = magnitude >> 23;
        const int32_t normal = exponent > 0 ? 0x800000 : 0, e = exponent > 1 ? exponent : 1;
        const int32_t m = (int32_t)((uint32_t)((s & 0x7FFFFF) | normal) << up);
        int32_t shift = base - e;
        shift = shift > 31 ? 31 : shift;
        shift = shift < 0 ? 0 : shift;
        const int32_t floored = ((int32_t)((uint32_t)m + (uint32_t)sign) >> shift) ^ sign;
        bins[i] = (int32_t)((uint32_t)floored + (uint32_t)half); /* unsigned: invalid bins may wrap */
        top = magnitude > top ? magnitude : top;
    }
    return top;
}

/* Counts bins into lanes (tally.h), and asks for what is read next. */
QT_STATS_TARGET static void QT_STATS(qt_count)(const int32_t *known, ptrdiff_t m, unsigned char *lanes,
                                              const float *next) {
    ptrdiff_t i = 0;
    for (; i + 16 <= m; i += 16) {
        int32_t differ = 0;
        for (int j = 0; j < 16; ++j) differ |= known[i + j] ^ known[i];
        qt_fetch_ahead(next + i, 64);
        if (differ)
            qt_count_16(known + i, lanes);
        else
            qt_count_16_equal(known[i], lanes);
    }
    qt_count_less(known + i, m - i, lanes);
}

/* Of n <= QT_TALLY_TILE elements: min_max_32 and bins, whose result it has. Meanwhile, the m <= QT_TALLY_TILE known bins
 * are counted: those of the tile before, about which it was not said beforehand that all are valid.
 */
QT_STATS_TARGET static int32_t QT_STATS(qt_tally_apart)(const float *x, ptrdiff_t n, int k, int32_t half, int32_t *bins,
                                                       int64_t *counts, int32_t *least, int32_t *most,
                                                       const int32_t *known, ptrdiff_t m, unsigned char *lanes) {
    int32_t largest = 0;
    if (n > 0) {
        QT_STATS(qt_min_max_32)(x, n, counts, least, most);
        largest = QT_STATS(qt_bins)(x, n, k, half, bins);
    }
    QT_STATS(qt_count)(known, m, lanes, x + n);
    return largest;
}

/* Adds the lanes of the bins [first, last) to their counts and clears them. */
QT_STATS_TARGET static void QT_STATS(qt_empty)(unsigned char *lanes, ptrdiff_t first, ptrdiff_t last,
                                              int64_t *restrict counts) {
    const uint64_t pairs = 0x0000FFFF0000FFFF;
    uint64_t c[8];
    for (ptrdiff_t i = first, n; i < last; i += n) {
        uint64_t any = 0;
        n = last - i < 8 ? 1 : 8;
        if (n == 8) {
            memcpy(c, lanes + i * QT_TALLY_BIN, sizeof c);
            for (int j = 0; j < 8; ++j) any |= c[j];
            if (any == 0) continue; /* the counts are not in the cache: leave them alone */
            memset(lanes + i * QT_TALLY_BIN, 0, sizeof c);
            for (int j = 0; j < 8; ++j) {
                const uint64_t two = (c[j] & pairs) + (c[j] >> 16 & pairs);
                counts[i + j] += (int64_t)((two & 0xFFFFFFFF) + (two >> 32));
            }
        } else {
            memcpy(c, lanes + i * QT_TALLY_BIN, sizeof *c);
            memset(lanes + i * QT_TALLY_BIN, 0, sizeof *c);
            for (int j = 0; j < 4; ++j) counts[i] += (int64_t)(c[0] >> 16 * j & 0xFFFF);
        }
    }
}

/* best[i] = max(best[i], bits of |x[i]|): the order of the floats, with NaN on top. */
QT_STATS_TARGET static void QT_STATS(qt_absmax_columns)(const float *restrict x, ptrdiff_t n, int32_t *restrict best) {
    for (ptrdiff_t i = 0; i < n; ++i) {
        const int32_t u = (int32_t)(qt_bits_of(x[i]) & 0x7FFFFFFF);
        best[i] = u > best[i] ? u : best[i];
    }
}

QT_STATS_TARGET static int32_t QT_STATS(qt_absmax_row)(const float *restrict x, ptrdiff_t n, int32_t best) {
    for (ptrdiff_t i = 0; i < n; ++i) {
        const int32_t u = (int32_t)(qt_bits_of(x[i]) & 0x7FFFFFFF);
        best = u > best ? u : best;
    }
    return best;
}

/* sum[i] += |x[i]| */
QT_STATS_TARGET static void QT_STATS(qt_abs_sum_columns)(const float *restrict x, ptrdiff_t n, double *restrict sum) {
    for (ptrdiff_t i = 0; i < n; ++i) sum[i] += (double)qt_float_of(qt_bits_of(x[i]) & 0x7FFFFFFF);
}

/* lanes[i % QT_STATS_LANES] += |x[i]|, in order */
QT_STATS_TARGET static void QT_STATS(qt_abs_sum_row)(const float *restrict x, ptrdiff_t n, double *restrict lanes) {
    double sum[QT_STATS_LANES];
    ptrdiff_t i = 0;
    memcpy(sum, lanes, sizeof sum);
    for (; i + QT_STATS_LANES <= n; i += QT_STATS_LANES)
        for (int j = 0; j < QT_STATS_LANES; ++j) sum[j] += (double)qt_float_of(qt_bits_of(x[i + j]) & 0x7FFFFFFF);
    for (int j = 0; i + j < n; ++j) sum[j] += (double)qt_float_of(qt_bits_of(x[i + j]) & 0x7FFFFFFF);
    memcpy(lanes, sum, sizeof sum);
}

static const qt_statistics QT_STATS(qt_statistics_loops) = {
    QT_STATS_NAME,           QT_STATS_ISA,         QT_STATS(qt_widen),
    QT_STATS(qt_min_max_32), QT_STATS(qt_min_max_16), QT_STATS(qt_bins),
#ifdef QT_STATS_HAS_TALLY
    QT_STATS(qt_tally),
#else
    QT_STATS(qt_tally_apart),
#endif
    QT_STATS(qt_empty),
    QT_STATS(qt_absmax_columns), QT_STATS(qt_absmax_row), QT_STATS(qt_abs_sum_columns),
    QT_STATS(qt_abs_sum_row),
};
