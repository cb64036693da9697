/* The loops of one row of dequantize.h in plain C. Included once per row, without a guard: QT_TARGET is the attribute of
 * the row's functions and QT_FN(name) their name. QT_OWN_SINGLES leaves out what the row does itself. */

#ifndef QT_OWN_SINGLES

#define QT_SINGLES(name, type, value)                                                                                  \
    QT_TARGET static void QT_FN(name)(const type *restrict x, const float *restrict table, const float *restrict s,    \
                                      const float *restrict z, ptrdiff_t block, ptrdiff_t n, float *restrict y) {      \
        (void)table;                                                                                                   \
        if (block == 1) {                                                                                              \
            for (ptrdiff_t i = 0; i < n; ++i) y[i] = (value - z[i]) * s[i];                                            \
            return;                                                                                                    \
        }                                                                                                              \
        for (; n > 0; x += block, y += block, n -= block, ++s, ++z) {                                                  \
            const ptrdiff_t m = n < block ? n : block;                                                                 \
            const float s0 = *s, z0 = *z;                                                                              \
            for (ptrdiff_t i = 0; i < m; ++i) y[i] = (value - z0) * s0;                                                \
        }                                                                                                              \
    }
QT_SINGLES(qt_singles_int8, int8_t, (float)x[i])
QT_SINGLES(qt_singles_uint8, uint8_t, (float)x[i])
QT_SINGLES(qt_singles_int16, int16_t, (float)x[i])
QT_SINGLES(qt_singles_uint16, uint16_t, (float)x[i])
QT_SINGLES(qt_singles_int32, int32_t, (float)x[i])
QT_SINGLES(qt_singles_table, uint8_t, table[x[i]])
#undef QT_SINGLES

QT_TARGET static void QT_FN(qt_singles)(const void *x, int source, const float *table, const float *s, const float *z,
                                        ptrdiff_t block, int stream, ptrdiff_t start, ptrdiff_t n, float *y) {
    (void)stream;
    switch (source) {
    case QT_INT8: QT_FN(qt_singles_int8)((const int8_t *)x + start, table, s, z, block, n, y); break;
    case QT_UINT8: QT_FN(qt_singles_uint8)((const uint8_t *)x + start, table, s, z, block, n, y); break;
    case QT_INT16: QT_FN(qt_singles_int16)((const int16_t *)x + start, table, s, z, block, n, y); break;
    case QT_UINT16: QT_FN(qt_singles_uint16)((const uint16_t *)x + start, table, s, z, block, n, y); break;
    case QT_INT32: QT_FN(qt_singles_int32)((const int32_t *)x + start, table, s, z, block, n, y); break;
    default: QT_FN(qt_singles_table)((const uint8_t *)x + start, table, s, z, block, n, y);
    }
}

#endif

/* The product is exact in double: 24 + 11 bits. */
QT_TARGET static void QT_FN(qt_halves)(const float *restrict d, const float *restrict s, ptrdiff_t block, int brain,
                                       ptrdiff_t n, uint16_t *restrict y) {
    if (block == 1) {
        if (brain)
            for (ptrdiff_t i = 0; i < n; ++i) y[i] = qt_to_bfloat(qt_round_to_odd((double)d[i] * (double)s[i]));
        else
            for (ptrdiff_t i = 0; i < n; ++i) y[i] = qt_to_half(qt_round_to_odd((double)d[i] * (double)s[i]));
        return;
    }
    for (; n > 0; d += block, y += block, n -= block, ++s) {
        const ptrdiff_t m = n < block ? n : block;
        const double s0 = (double)*s;
        if (brain)
            for (ptrdiff_t i = 0; i < m; ++i) y[i] = qt_to_bfloat(qt_round_to_odd((double)d[i] * s0));
        else
            for (ptrdiff_t i = 0; i < m; ++i) y[i] = qt_to_half(qt_round_to_odd((double)d[i] * s0));
    }
}

QT_TARGET static void QT_FN(qt_unpack)(const uint8_t *restrict raw, int bits, ptrdiff_t n, uint8_t *restrict codes) {
    if (bits == 4)
        for (ptrdiff_t i = 0; i < n; ++i) {
            codes[2 * i] = raw[i] & 15;
            codes[2 * i + 1] = raw[i] >> 4;
        }
    else if (bits == 2)
        for (ptrdiff_t i = 0; i < n; ++i) {
            codes[4 * i] = raw[i] & 3;
            codes[4 * i + 1] = raw[i] >> 2 & 3;
            codes[4 * i + 2] = raw[i] >> 4 & 3;
            codes[4 * i + 3] = raw[i] >> 6;
        }
    else
        for (ptrdiff_t i = 0; i < n; ++i) {
            const uint32_t a = raw[3 * i], b = raw[3 * i + 1], c = raw[3 * i + 2];
            codes[4 * i] = (uint8_t)(a & 63);
            codes[4 * i + 1] = (uint8_t)((a >> 6 | b << 2) & 63);
            codes[4 * i + 2] = (uint8_t)((b >> 4 | c << 4) & 63);
            codes[4 * i + 3] = (uint8_t)(c >> 2);
        }
}
