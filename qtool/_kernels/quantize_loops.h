/* The loops of one row of quantize.h in plain C. Included once per row, without a guard: QT_TARGET is the attribute of
 * the row's functions and QT_FN(name) their name. QT_OWN_LOAD leaves out what the row does itself,
 * and with QT_OWN_CODES it has its own codes8 and floats: those here end in _loops. */

#ifndef QT_OWN_LOAD
QT_TARGET static void QT_FN(qt_halves_to_floats)(const uint16_t *restrict x, ptrdiff_t n, float *restrict t) {
    for (ptrdiff_t i = 0; i < n; ++i) t[i] = qt_from_half(x[i]);
}
#endif

QT_TARGET static void QT_FN(qt_load)(const void *x, int source, int precision, ptrdiff_t start, ptrdiff_t n,
                                     float *restrict t) {
    const float *restrict singles = (const float *)x + start;
    const uint16_t *restrict halves = (const uint16_t *)x + start;
    const int32_t *restrict integers = (const int32_t *)x + start;
    if (source == QT_FLOAT32)
        for (ptrdiff_t i = 0; i < n; ++i) t[i] = singles[i];
    else if (source == QT_FLOAT16)
        QT_FN(qt_halves_to_floats)(halves, n, t);
    else if (source == QT_BFLOAT16)
        for (ptrdiff_t i = 0; i < n; ++i) t[i] = qt_from_bfloat(halves[i]);
    else if (precision == QT_FLOAT32)
        for (ptrdiff_t i = 0; i < n; ++i) t[i] = (float)integers[i];
    else
        for (ptrdiff_t i = 0; i < n; ++i) t[i] = qt_round_to_odd((double)integers[i]);
    if (precision == QT_FLOAT16 && source != QT_FLOAT16)
        for (ptrdiff_t i = 0; i < n; ++i) t[i] = qt_round_half(t[i]);
    else if (precision == QT_BFLOAT16 && source != QT_BFLOAT16)
        for (ptrdiff_t i = 0; i < n; ++i) t[i] = qt_round_bfloat(t[i]);
}

/* One loop for each precision and kind of run: a test inside would keep it from vectorising. */
#define QT_CODES(name, code_t)                                                                                       \
    QT_TARGET static void name(const float *restrict x, const float *restrict s, const int32_t *restrict z,   \
                                      ptrdiff_t block, int precision, qt_integer type, ptrdiff_t n,                  \
                                      code_t *restrict y) {                                                          \
        if (block == 1) {                                                                                            \
            if (precision == QT_FLOAT32)                                                                             \
                for (ptrdiff_t i = 0; i < n; ++i) y[i] = (code_t)qt_integer_code(x[i], s[i], z[i], QT_FLOAT32, type);\
            else if (precision == QT_FLOAT16)                                                                        \
                for (ptrdiff_t i = 0; i < n; ++i) y[i] = (code_t)qt_integer_code(x[i], s[i], z[i], QT_FLOAT16, type);\
            else                                                                                                     \
                for (ptrdiff_t i = 0; i < n; ++i)                                                                    \
                    y[i] = (code_t)qt_integer_code(x[i], s[i], z[i], QT_BFLOAT16, type);                             \
            return;                                                                                                  \
        }                                                                                                            \
        for (; n > 0; x += block, y += block, n -= block, ++s, ++z) {                                                \
            const ptrdiff_t m = n < block ? n : block;                                                               \
            const float s0 = *s;                                                                                     \
            const int32_t z0 = *z;                                                                                   \
            if (precision == QT_FLOAT32)                                                                             \
                for (ptrdiff_t i = 0; i < m; ++i) y[i] = (code_t)qt_integer_code(x[i], s0, z0, QT_FLOAT32, type);    \
            else if (precision == QT_FLOAT16)                                                                        \
                for (ptrdiff_t i = 0; i < m; ++i) y[i] = (code_t)qt_integer_code(x[i], s0, z0, QT_FLOAT16, type);    \
            else                                                                                                     \
                for (ptrdiff_t i = 0; i < m; ++i) y[i] = (code_t)qt_integer_code(x[i], s0, z0, QT_BFLOAT16, type);   \
        }                                                                                                            \
    }
#ifdef QT_OWN_CODES
#define QT_LOOPS(name) QT_FN(name##_loops)
#else
#define QT_LOOPS(name) QT_FN(name)
#endif
QT_CODES(QT_LOOPS(qt_codes8), uint8_t)
QT_CODES(QT_FN(qt_codes16), uint16_t)
#undef QT_CODES

QT_TARGET static void QT_LOOPS(qt_floats)(const float *restrict x, const float *restrict s, const float *restrict z,
                                       ptrdiff_t block, int precision, const qt_small_float *form, uint32_t overflow,
                                       ptrdiff_t n, uint8_t *restrict y) {
    const qt_small_float f = *form;
    if (block == 1) {
        if (precision == QT_FLOAT32)
            for (ptrdiff_t i = 0; i < n; ++i) y[i] = qt_float_code(x[i], s[i], z[i], QT_FLOAT32, f, overflow);
        else if (precision == QT_FLOAT16)
            for (ptrdiff_t i = 0; i < n; ++i) y[i] = qt_float_code(x[i], s[i], z[i], QT_FLOAT16, f, overflow);
        else
            for (ptrdiff_t i = 0; i < n; ++i) y[i] = qt_float_code(x[i], s[i], z[i], QT_BFLOAT16, f, overflow);
        return;
    }
    for (; n > 0; x += block, y += block, n -= block, ++s, ++z) {
        const ptrdiff_t m = n < block ? n : block;
        const float s0 = *s, z0 = *z;
        if (precision == QT_FLOAT32)
            for (ptrdiff_t i = 0; i < m; ++i) y[i] = qt_float_code(x[i], s0, z0, QT_FLOAT32, f, overflow);
        else if (precision == QT_FLOAT16)
            for (ptrdiff_t i = 0; i < m; ++i) y[i] = qt_float_code(x[i], s0, z0, QT_FLOAT16, f, overflow);
        else
            for (ptrdiff_t i = 0; i < m; ++i) y[i] = qt_float_code(x[i], s0, z0, QT_BFLOAT16, f, overflow);
    }
}

#undef QT_LOOPS

/* Thirty-two lanes: a reduction over one float may not be reordered by the compiler. */
QT_TARGET static void QT_FN(qt_range)(const float *restrict x, ptrdiff_t n, float *lo, float *hi) {
    float l[32], h[32];
    for (int j = 0; j < 32; ++j) l[j] = *lo, h[j] = *hi;
    ptrdiff_t i = 0;
    for (; i + 32 <= n; i += 32)
        for (int j = 0; j < 32; ++j) {
            l[j] = x[i + j] < l[j] ? x[i + j] : l[j];
            h[j] = x[i + j] > h[j] ? x[i + j] : h[j];
        }
    for (; i < n; ++i) {
        l[0] = x[i] < l[0] ? x[i] : l[0];
        h[0] = x[i] > h[0] ? x[i] : h[0];
    }
    for (int j = 0; j < 32; ++j) {
        *lo = l[j] < *lo ? l[j] : *lo;
        *hi = h[j] > *hi ? h[j] : *hi;
    }
}

QT_TARGET static void QT_FN(qt_pack)(const uint8_t *restrict codes, int bits, ptrdiff_t n, uint8_t *restrict raw) {
    if (bits == 4)
        for (ptrdiff_t i = 0; i < n; ++i) raw[i] = (uint8_t)((codes[2 * i] & 15) | codes[2 * i + 1] << 4);
    else if (bits == 2)
        for (ptrdiff_t i = 0; i < n; ++i)
            raw[i] = (uint8_t)((codes[4 * i] & 3) | (codes[4 * i + 1] & 3) << 2 | (codes[4 * i + 2] & 3) << 4 |
                               codes[4 * i + 3] << 6);
    else
        for (ptrdiff_t i = 0; i < n; ++i) {
            const uint32_t a = codes[4 * i] & 63, b = codes[4 * i + 1] & 63, c = codes[4 * i + 2] & 63;
            raw[3 * i] = (uint8_t)(a | b << 6);
            raw[3 * i + 1] = (uint8_t)(b >> 2 | c << 4);
            raw[3 * i + 2] = (uint8_t)(c >> 4 | codes[4 * i + 3] << 2);
        }
}
