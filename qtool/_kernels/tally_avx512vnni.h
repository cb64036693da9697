/* The tally of statistics_avx512vnni.h: bins of one tile and counts of another in one loop.
 *
 * the trick     x + 1.5 * 2^(23-k) is a float whose spacing is 2^-k, so that the sum, rounded down, has floor(x * 2^k)
 *               in its last bits: an addition and a mask, where bins needs twelve instructions
 * the loop      counting 16 elements waits for 16 stores to the first cache. That leaves the core room for the scan and
 *               the bins of 16 others, and for lines to come from memory meanwhile; one after the other, the two took
 *               a tenth to a sixth longer
 * exactness     the sum is rounded once, onto the grid of the bins; subnormal numbers must not be taken for zeros
 */
#ifndef QT_TALLY_AVX512VNNI_H
#define QT_TALLY_AVX512VNNI_H

/* Not inlined: the processor's mode is changed around the call. */
__attribute__((noinline)) QT_STATS_TARGET static int32_t qt_tally_together__avx512vnni(
    const float *x, ptrdiff_t n, int k, int32_t half, int32_t *bins, int64_t *counts, int32_t *least, int32_t *most,
    const int32_t *known, ptrdiff_t m, unsigned char *lanes) {
    const __m512 grid = _mm512_castsi512_ps(_mm512_set1_epi32((150 - k) << 23 | 0x400000 | half));
    const __m512i within = _mm512_set1_epi32(2 * half - 1);
    const __m512i none = _mm512_setzero_si512();
    qt_scan__avx512vnni scan = {_mm512_set1_epi32(INT32_MIN), none, none};
    ptrdiff_t i = 0;
    for (; i < n; i += 16) {
        const __mmask16 part = n - i < 16 ? (__mmask16)((1u << (n - i)) - 1) : (__mmask16)0xFFFF;
        _mm_prefetch((const char *)((uintptr_t)(x + i) + QT_STATS_NEAR), _MM_HINT_T0);
        _mm_prefetch((const char *)((uintptr_t)(x + i) + QT_STATS_FAR), _MM_HINT_T1);
        qt_scan_step__avx512vnni(&scan, x + i, part);
        const __m512 sum = _mm512_add_round_ps(_mm512_maskz_loadu_ps(part, x + i), grid,
                                               _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
        _mm512_mask_storeu_epi32(bins + i, part, _mm512_and_si512(_mm512_castps_si512(sum), within));
        if (i + 16 <= m) {
            const __m512i b = _mm512_loadu_si512(known + i);
            if (_mm512_cmpneq_epi32_mask(b, _mm512_set1_epi32(known[i])) != 0)
                qt_count_16(known + i, lanes);
            else
                qt_count_16_equal(known[i], lanes);
        } else if (i < m) {
            qt_count_less(known + i, m - i, lanes);
        }
    }
    if (i < m) qt_count__avx512vnni(known + i, m - i, lanes, x + n);
    const int32_t top = _mm512_reduce_max_epi32(scan.top);
    const uint32_t bottom = _mm512_reduce_max_epu32(scan.bottom);
    const int32_t below = bottom > INT32_MAX ? (int32_t)(bottom & INT32_MAX) : 0;
    if (n > 0) qt_extend_32__avx512vnni(x, n, top, bottom, -_mm512_reduce_add_epi32(scan.zeros), counts, least, most);
    return top > below ? top : below;
}

QT_STATS_TARGET static int32_t qt_tally__avx512vnni(const float *x, ptrdiff_t n, int k, int32_t half, int32_t *bins,
                                                   int64_t *counts, int32_t *least, int32_t *most,
                                                   const int32_t *known, ptrdiff_t m, unsigned char *lanes) {
    const unsigned zeros_for_subnormals = 0x40, mode = _mm_getcsr();
    int32_t largest;
    if (k < -104 || k > 149) /* no float has that spacing, or its sum with x none */
        return qt_tally_apart__avx512vnni(x, n, k, half, bins, counts, least, most, known, m, lanes);
    if (mode & zeros_for_subnormals) _mm_setcsr(mode & ~zeros_for_subnormals);
    largest = qt_tally_together__avx512vnni(x, n, k, half, bins, counts, least, most, known, m, lanes);
    if (mode & zeros_for_subnormals) _mm_setcsr(mode);
    return largest;
}

#endif
