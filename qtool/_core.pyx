# cython: language_level=3
"""The compiled core of qtool: loops over typed memoryviews, nothing else."""

# ---------------------------------------------------------------------------------------------------- threads and ISA

# ------------------------------------------------------------------------------------------------- elementwise kernels
#
# Quantize, dequantize, pack and count, element by element.
#
#   q = saturate(rint(x / s) + z)      true division in the precision of the scale, clamp in floating point, round half
#                                      to even, then add z in integers
#   y = (x - z) * s                    one rounding to the output type
#
# Layout: a tensor is `rows` of `cols` contiguous elements; see Layout for the scale of an element. Tasks are equal
# ranges of elements, so a result never depends on the number of threads. Within a task, runs of elements with one
# scale (step 0) or with neighbouring scales (step 1) go to the inner loops, which have no branches and vectorise.
#
# Exactness of the helpers:
#   (q + 12582912) - 12582912 is rint(q) for |q| <= 2^22; after the clamp |q| <= 65535 + 65535.
#   |f| + 1.5 * 2^(23+e-m) rounds |f| to m bits after the leading one of 2^e: that is the rounding to a small float,
#   and the sum's low bits are its mantissa. The float16 quotient is a float32 quotient rounded once more, which is
#   exact (24 >= 2p + 2; reference.quantize_linear has the argument for subnormals). Products for a half-precision
#   output are exact in double and reach float32 by rounding to odd, so that the last rounding is the only one.

from cython.parallel cimport prange
from libc.math cimport fabs, floor, ldexp
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t
from libc.string cimport memcpy

cdef enum Source:          # element types of x: the numbers are those of kernels._SOURCES
    FLOAT32 = 0
    FLOAT16 = 1
    BFLOAT16 = 2
    INT32 = 3
    INT8 = 4
    UINT8 = 5
    INT16 = 6
    UINT16 = 7
    TABLE = 8              # one byte, looked up in a table of float32

cdef enum:
    TILE = 1024            # elements of scratch on the stack of a task
    TASK = 32768           # elements of one task

cdef struct Layout:
    # The scale of column c of row r has the index ((r / n_mid) * k0 + (r % n_mid) / b_mid) * k1 + c / b_col.
    Py_ssize_t cols, n_mid, b_mid, k0, k1, b_col

cdef struct Format:        # dtypes.FloatFormat, with what the loops derive from it
    uint32_t mantissa, min_exponent, cap, max_code, overflow, nan, sign_shift, nan_sign, zero_sign

ctypedef fused code_t:
    uint8_t
    uint16_t

ctypedef fused integer_t:
    int8_t
    uint8_t
    int16_t
    uint16_t
    int32_t


cdef inline uint32_t _bits(float f) noexcept nogil:
    cdef uint32_t u
    memcpy(&u, &f, 4)
    return u


cdef inline float _float(uint32_t u) noexcept nogil:
    cdef float f
    memcpy(&f, &u, 4)
    return f


cdef inline float _from_half(uint16_t h) noexcept nogil:
    cdef uint32_t u = <uint32_t>(h & 0x7FFF) << 13
    cdef float f = _float(u) * _float(0x77800000)           # 2^112 moves the bias from 15 to 127; exact
    cdef uint32_t special = 0x7F800000 | u
    u = special if (h & 0x7C00) == 0x7C00 else _bits(f)
    return _float(u | (<uint32_t>(h & 0x8000) << 16))


cdef inline float _from_bfloat(uint16_t h) noexcept nogil:
    return _float(<uint32_t>h << 16)


cdef inline uint16_t _to_bfloat(float f) noexcept nogil:
    cdef uint32_t u = _bits(f)
    cdef uint32_t rounded = (u + 0x7FFF + ((u >> 16) & 1)) >> 16
    cdef uint32_t nan = ((u >> 16) & 0x8000) | 0x7FC0
    return <uint16_t>(nan if (u & 0x7FFFFFFF) > 0x7F800000 else rounded)


cdef inline float _round_bfloat(float f) noexcept nogil:
    return _from_bfloat(_to_bfloat(f))


cdef inline float _round_half(float f) noexcept nogil:
    """f rounded to float16, as a float32."""
    cdef uint32_t u = _bits(f)
    cdef uint32_t magnitude = u & 0x7FFFFFFF
    cdef uint32_t capped = magnitude if magnitude < 0x48000000 else 0x48000000          # 2^17
    cdef uint32_t exponent = capped >> 23 if capped >> 23 > 113 else 113                  # 2^-14, the least normal
    cdef float magic = _float(((exponent + 13) << 23) | 0x400000)
    cdef uint32_t rounded = _bits((_float(capped) + magic) - magic)
    rounded = 0x7F800000 if rounded > 0x477FE000 else rounded                             # 65504
    rounded = magnitude if magnitude > 0x7F800000 else rounded
    return _float(rounded | ((u >> 31) << 31))


cdef inline float _round_to_odd(double d) noexcept nogil:
    """d as a float32 whose last bit is set if bits were lost: rounding it again rounds d once."""
    cdef float f = <float>d
    cdef uint32_t u = _bits(f)
    u = u - 1 if fabs(<double>f) > fabs(d) else u
    u = u | 1 if <double>f != d else u
    return _float(u) if d == d else f


cdef inline Py_ssize_t _smaller(Py_ssize_t a, Py_ssize_t b) noexcept nogil:
    return a if a < b else b


cdef Layout _layout(tuple numbers):
    cdef Layout layout
    layout.cols, layout.n_mid, layout.b_mid, layout.k0, layout.k1, layout.b_col = numbers
    return layout


cdef Py_ssize_t _run(const Layout* at, Py_ssize_t start, Py_ssize_t stop, Py_ssize_t* scale, bint* step) noexcept nogil:
    """Length of the run of elements that begins at `start`, the index of its scale, and whether that one moves along."""
    cdef Py_ssize_t row = start // at.cols
    cdef Py_ssize_t column = start - row * at.cols
    cdef Py_ssize_t length = _smaller(_smaller(at.cols - column, stop - start), TILE)
    scale[0] = ((row // at.n_mid) * at.k0 + (row % at.n_mid) // at.b_mid) * at.k1 + column // at.b_col
    step[0] = at.b_col == 1
    if not step[0]:
        length = _smaller(length, at.b_col - column % at.b_col)
    return length


cdef Format _format(tuple numbers):
    cdef Format form
    cdef int bias, signed_nan, negative_zero
    form.mantissa, bias, form.max_code, form.overflow, form.nan, signed_nan, negative_zero, form.sign_shift = numbers
    form.min_exponent = 128 - bias                                                        # of float32
    form.cap = ((form.max_code >> form.mantissa) + 129 - bias) << 23                      # beyond every rounding
    form.nan_sign = <uint32_t>1 if signed_nan else 0
    form.zero_sign = <uint32_t>1 if negative_zero else 0
    return form


# x as float32 values of the precision of the division

cdef void _load(const void* x, int source, int precision, Py_ssize_t start, Py_ssize_t n, float* t) noexcept nogil:
    cdef Py_ssize_t i
    cdef const float* singles = <const float*>x + start
    cdef const uint16_t* halves = <const uint16_t*>x + start
    cdef const int32_t* integers = <const int32_t*>x + start
    if source == FLOAT32:
        for i in range(n):
            t[i] = singles[i]
    elif source == FLOAT16:
        for i in range(n):
            t[i] = _from_half(halves[i])
    elif source == BFLOAT16:
        for i in range(n):
            t[i] = _from_bfloat(halves[i])
    elif precision == FLOAT32:
        for i in range(n):
            t[i] = <float>integers[i]
    else:
        for i in range(n):
            t[i] = _round_to_odd(<double>integers[i])
    if precision == FLOAT16 and source != FLOAT16:
        for i in range(n):
            t[i] = _round_half(t[i])
    elif precision == BFLOAT16 and source != BFLOAT16:
        for i in range(n):
            t[i] = _round_bfloat(t[i])


def round_to(const uint8_t[::1] x, int source, int precision, float[::1] y):
    """y = x rounded once to `precision`, held in float32."""
    if y.shape[0] > 0:
        _load(&x[0], source, precision, 0, y.shape[0], &y[0])


cdef void _divide(const float* x, const float* s, bint step, int precision, Py_ssize_t n, float* q) noexcept nogil:
    cdef Py_ssize_t i
    cdef float s0 = s[0]
    if step:
        for i in range(n):
            q[i] = x[i] / s[i]
    else:
        for i in range(n):
            q[i] = x[i] / s0
    _round_precision(q, precision, n)


cdef void _round_precision(float* q, int precision, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i
    if precision == FLOAT16:
        for i in range(n):
            q[i] = _round_half(q[i])
    elif precision == BFLOAT16:
        for i in range(n):
            q[i] = _round_bfloat(q[i])


# float32 -> integer codes

cdef inline int32_t _round_clamped(float q, float low, float high) noexcept nogil:
    q = q if q > low else low                                                             # a NaN becomes `low`
    q = q if q < high else high
    return <int32_t>((q + <float>12582912.0) - <float>12582912.0)


cdef void _quantize_run(
    const float* x, const float* s, const int32_t* z, bint step, int qmin, int qmax, int mask, Py_ssize_t n, code_t* y,
) noexcept nogil:
    cdef Py_ssize_t i
    cdef float s0 = s[0], low = <float>(qmin - z[0]), high = <float>(qmax - z[0])
    cdef int32_t z0 = z[0]
    if step:
        for i in range(n):
            y[i] = <code_t>((_round_clamped(x[i] / s[i], <float>(qmin - z[i]), <float>(qmax - z[i])) + z[i]) & mask)
    else:
        for i in range(n):
            y[i] = <code_t>((_round_clamped(x[i] / s0, low, high) + z0) & mask)


cdef void _quantize_task(
    const void* x, int source, int precision, const float* s, const int32_t* z, const Layout* layout,
    int qmin, int qmax, int mask, Py_ssize_t start, Py_ssize_t stop, code_t* y,
) noexcept nogil:
    cdef float tile[TILE]
    cdef float ones[TILE]
    cdef Py_ssize_t n, k = 0, i
    cdef bint step = False
    for i in range(TILE):
        ones[i] = 1.0
    while start < stop:
        n = _run(layout, start, stop, &k, &step)
        if source == FLOAT32 and precision == FLOAT32:
            _quantize_run(<const float*>x + start, s + k, z + k, step, qmin, qmax, mask, n, y + start)
        else:
            _load(x, source, precision, start, n, tile)
            _divide(tile, s + k, step, precision, n, tile)
            _quantize_run(tile, ones, z + k, step, qmin, qmax, mask, n, y + start)
        start += n


def quantize_integer(
    const uint8_t[::1] x, int source, int precision, const float[::1] scale, const int32_t[::1] zero_point, tuple layout,
    int qmin, int qmax, int bits, code_t[::1] y, int n_threads,
):
    """y[i] = saturate(rint(x[i] / s) + z), as the low `bits` bits of each y.

    x holds y.size elements of type `source`; scale and zero_point, of one size, are indexed by `layout`.
    """
    cdef Py_ssize_t size = y.shape[0], t
    cdef Layout at = _layout(layout)
    cdef int mask = (1 << bits) - 1
    if size == 0:
        return
    for t in prange((size + TASK - 1) // TASK, nogil=True, schedule="static", num_threads=n_threads):
        _quantize_task(&x[0], source, precision, &scale[0], &zero_point[0], &at, qmin, qmax, mask,
                       t * TASK, _smaller((t + 1) * TASK, size), &y[0])


# float32 -> small floats

cdef void _encode(const float* q, const Format* form, uint32_t overflow, Py_ssize_t n, uint8_t* y) noexcept nogil:
    cdef Py_ssize_t i
    cdef uint32_t u, magnitude, capped, exponent, magic, code, sign, is_nan
    cdef uint32_t mantissa = form.mantissa, min_exponent = form.min_exponent, cap = form.cap, max_code = form.max_code
    cdef uint32_t nan = form.nan, nan_sign = form.nan_sign, zero_sign = form.zero_sign, sign_shift = form.sign_shift
    for i in range(n):
        u = _bits(q[i])
        magnitude = u & 0x7FFFFFFF
        sign = u >> 31
        capped = magnitude if magnitude < cap else cap
        exponent = capped >> 23
        exponent = exponent if exponent > min_exponent else min_exponent
        magic = ((exponent + 23 - mantissa) << 23) | 0x400000
        code = ((exponent - min_exponent) << mantissa) + _bits(_float(capped) + _float(magic)) - magic
        code = code if code <= max_code else overflow
        code = code if magnitude <= 0x7F800000 else nan
        is_nan = <uint32_t>(code == nan)
        sign = sign & (nan_sign | (is_nan ^ 1)) & (zero_sign | <uint32_t>(code != 0))
        y[i] = <uint8_t>(code | (sign << sign_shift))


cdef void _quantize_float_task(
    const void* x, int source, int precision, const float* s, const float* z, bint add_zero_point, const Layout* layout,
    const Format* form, uint32_t overflow, Py_ssize_t start, Py_ssize_t stop, uint8_t* y,
) noexcept nogil:
    cdef float tile[TILE]
    cdef float quotient[TILE]
    cdef Py_ssize_t n, i, k = 0
    cdef bint step = False
    cdef uint32_t u
    while start < stop:
        n = _run(layout, start, stop, &k, &step)
        _load(x, source, precision, start, n, tile)
        _divide(tile, s + k, step, precision, n, quotient)
        if add_zero_point:
            for i in range(n):
                quotient[i] = quotient[i] + z[k + (i if step else 0)]
            _round_precision(quotient, precision, n)
        for i in range(n):                       # a NaN has the sign of x, whatever the processor gives to 0/0
            u = _bits(quotient[i])
            if (u & 0x7FFFFFFF) > 0x7F800000:
                quotient[i] = _float((u & 0x7FFFFFFF) | ((_bits(tile[i]) >> 31) << 31))
        _encode(quotient, form, overflow, n, y + start)
        start += n


def quantize_float(
    const uint8_t[::1] x, int source, int precision, const float[::1] scale, const float[::1] zero_point, tuple layout,
    tuple format, bint saturate, uint8_t[::1] y, int n_threads,
):
    """y[i] = code of the small float nearest to x[i] / s (+ z if zero_point is not empty), ties to even.

    `format` is (mantissa, bias, max_code, overflow, nan, signed_nan, negative_zero, sign_shift) of dtypes.FloatFormat.
    """
    cdef Py_ssize_t size = y.shape[0], t
    cdef Layout at = _layout(layout)
    cdef Format form = _format(format)
    cdef uint32_t overflow = form.max_code if saturate else form.overflow
    cdef bint add_zero_point = zero_point.shape[0] > 0
    cdef const float* z = NULL
    if size == 0:
        return
    if add_zero_point:
        z = &zero_point[0]
    for t in prange((size + TASK - 1) // TASK, nogil=True, schedule="static", num_threads=n_threads):
        _quantize_float_task(&x[0], source, precision, &scale[0], z, add_zero_point, &at, &form, overflow,
                             t * TASK, _smaller((t + 1) * TASK, size), &y[0])


# codes -> float32, float16, bfloat16

cdef void _dequantize_run(
    const integer_t* x, const float* s, const float* z, bint step, Py_ssize_t n, float* y,
) noexcept nogil:
    cdef Py_ssize_t i
    cdef float s0 = s[0], z0 = z[0]
    if step:
        for i in range(n):
            y[i] = (<float>x[i] - z[i]) * s[i]
    else:
        for i in range(n):
            y[i] = (<float>x[i] - z0) * s0


cdef void _dequantize_table_run(
    const uint8_t* x, const float* table, const float* s, const float* z, bint step, Py_ssize_t n, float* y,
) noexcept nogil:
    cdef Py_ssize_t i
    cdef float s0 = s[0], z0 = z[0]
    if step:
        for i in range(n):
            y[i] = (table[x[i]] - z[i]) * s[i]
    else:
        for i in range(n):
            y[i] = (table[x[i]] - z0) * s0


cdef void _dequantize_any(
    const void* x, int source, const float* table, const float* s, const float* z, bint step, Py_ssize_t start,
    Py_ssize_t n, float* y,
) noexcept nogil:
    if source == INT8:
        _dequantize_run(<const int8_t*>x + start, s, z, step, n, y)
    elif source == UINT8:
        _dequantize_run(<const uint8_t*>x + start, s, z, step, n, y)
    elif source == INT16:
        _dequantize_run(<const int16_t*>x + start, s, z, step, n, y)
    elif source == UINT16:
        _dequantize_run(<const uint16_t*>x + start, s, z, step, n, y)
    elif source == INT32:
        _dequantize_run(<const int32_t*>x + start, s, z, step, n, y)
    else:
        _dequantize_table_run(<const uint8_t*>x + start, table, s, z, step, n, y)


cdef void _dequantize_task(
    const void* x, int source, const float* table, const float* s, const float* z, const Layout* layout,
    Py_ssize_t start, Py_ssize_t stop, float* y,
) noexcept nogil:
    cdef Py_ssize_t n, k = 0
    cdef bint step = False
    while start < stop:
        n = _run(layout, start, stop, &k, &step)
        _dequantize_any(x, source, table, s + k, z + k, step, start, n, y + start)
        start += n


cdef void _dequantize_half_task(
    const void* x, int source, const float* table, const float* s, const float* z, const Layout* layout,
    bint brain, Py_ssize_t start, Py_ssize_t stop, uint16_t* y,
) noexcept nogil:
    cdef float tile[TILE]
    cdef float ones[TILE]
    cdef Py_ssize_t n, i, k = 0
    cdef bint step = False
    for i in range(TILE):
        ones[i] = 1.0
    while start < stop:
        n = _run(layout, start, stop, &k, &step)
        # The difference alone, then the product in double: exact for 24 + 11 bits.
        _dequantize_any(x, source, table, ones, z + k, step, start, n, tile)
        for i in range(n):
            tile[i] = _round_to_odd(<double>tile[i] * <double>s[k + (i if step else 0)])
        if brain:
            for i in range(n):
                y[start + i] = _to_bfloat(tile[i])
        else:
            for i in range(n):
                y[start + i] = _to_half(tile[i])
        start += n


cdef inline uint16_t _to_half(float f) noexcept nogil:
    cdef uint32_t u = _bits(_round_half(f))                   # now every case is exact
    cdef uint32_t magnitude = u & 0x7FFFFFFF
    cdef uint32_t normal = (magnitude - 0x38000000) >> 13
    cdef uint32_t subnormal = <uint32_t><int32_t>(_float(magnitude if magnitude < 0x38800000 else 0) * <float>16777216.0)
    cdef uint32_t h = normal if magnitude >= 0x38800000 else subnormal
    h = 0x7C00 if magnitude == 0x7F800000 else h
    h = 0x7E00 if magnitude > 0x7F800000 else h
    return <uint16_t>(h | ((u >> 16) & 0x8000))


def dequantize(
    const uint8_t[::1] x, int source, const float[::1] table, const float[::1] scale, const float[::1] zero_point,
    tuple layout, float[::1] y, int n_threads,
):
    """y[i] = (x[i] - z) * s in float32. `table` (256 values) decodes one-byte codes where source is TABLE."""
    cdef Py_ssize_t size = y.shape[0], t
    cdef Layout at = _layout(layout)
    if size == 0:
        return
    for t in prange((size + TASK - 1) // TASK, nogil=True, schedule="static", num_threads=n_threads):
        _dequantize_task(&x[0], source, &table[0], &scale[0], &zero_point[0], &at,
                         t * TASK, _smaller((t + 1) * TASK, size), &y[0])


def dequantize_half(
    const uint8_t[::1] x, int source, const float[::1] table, const float[::1] scale, const float[::1] zero_point,
    tuple layout, bint brain, uint16_t[::1] y, int n_threads,
):
    """Like `dequantize`, to float16, or to bfloat16 if `brain`: the product is rounded once."""
    cdef Py_ssize_t size = y.shape[0], t
    cdef Layout at = _layout(layout)
    if size == 0:
        return
    for t in prange((size + TASK - 1) // TASK, nogil=True, schedule="static", num_threads=n_threads):
        _dequantize_half_task(&x[0], source, &table[0], &scale[0], &zero_point[0], &at, brain,
                              t * TASK, _smaller((t + 1) * TASK, size), &y[0])


# Packing: low bits first

def pack(const uint8_t[::1] codes, int bits, uint8_t[::1] raw, int n_threads):
    """Codes of 2, 4 or 6 bits (the low bits of each byte) to a dense stream; raw.size = ceil(codes.size * bits / 8)."""
    cdef Py_ssize_t size = codes.shape[0], i
    cdef Py_ssize_t whole = size * bits // 8 if bits != 6 else size // 4
    cdef uint32_t four
    cdef int mask = (1 << bits) - 1
    if size == 0:
        return
    if bits == 4:
        for i in prange(whole, nogil=True, schedule="static", num_threads=n_threads):
            raw[i] = <uint8_t>((codes[2 * i] & 15) | (codes[2 * i + 1] << 4))
    elif bits == 2:
        for i in prange(whole, nogil=True, schedule="static", num_threads=n_threads):
            raw[i] = <uint8_t>((codes[4 * i] & 3) | ((codes[4 * i + 1] & 3) << 2) | ((codes[4 * i + 2] & 3) << 4)
                               | (codes[4 * i + 3] << 6))
    else:
        for i in prange(whole, nogil=True, schedule="static", num_threads=n_threads):
            four = (codes[4 * i] & 63) | ((codes[4 * i + 1] & 63) << 6) | ((codes[4 * i + 2] & 63) << 12)
            four = four | (<uint32_t>(codes[4 * i + 3] & 63) << 18)
            raw[3 * i] = <uint8_t>four
            raw[3 * i + 1] = <uint8_t>(four >> 8)
            raw[3 * i + 2] = <uint8_t>(four >> 16)
    cdef Py_ssize_t done = whole * 8 // bits if bits != 6 else whole * 4
    cdef Py_ssize_t byte = done * bits // 8
    four = 0
    for i in range(done, size):
        four |= <uint32_t>(codes[i] & mask) << <int>((i - done) * bits)
    while byte < raw.shape[0]:
        raw[byte] = <uint8_t>four
        four >>= 8
        byte += 1


def unpack(const uint8_t[::1] raw, int bits, uint8_t[::1] codes, int n_threads):
    """The inverse of `pack`: each code in the low bits of a byte, the bits above it zero."""
    cdef Py_ssize_t size = codes.shape[0], i, bit, byte
    cdef int mask = (1 << bits) - 1
    cdef uint32_t two
    cdef Py_ssize_t last = raw.shape[0] - 1
    if size == 0:
        return
    if bits == 6:
        for i in prange(size, nogil=True, schedule="static", num_threads=n_threads):
            bit = i * 6
            byte = bit >> 3
            two = raw[byte] | (<uint32_t>raw[_smaller(byte + 1, last)] << 8)
            codes[i] = <uint8_t>((two >> <int>(bit & 7)) & mask)
    elif bits == 4:
        for i in prange(size, nogil=True, schedule="static", num_threads=n_threads):
            codes[i] = (raw[i >> 1] >> <int>((i & 1) * 4)) & 15
    else:
        for i in prange(size, nogil=True, schedule="static", num_threads=n_threads):
            codes[i] = (raw[i >> 2] >> <int>((i & 3) * 2)) & 3


# Statistics

cdef inline int32_t _ordered(uint32_t u) noexcept nogil:
    """Bits of a float32 as an integer of the same order (-0 just below +0); it is its own inverse."""
    cdef int32_t s = <int32_t>u
    return s ^ ((s >> 31) & 0x7FFFFFFF)


cdef void _min_max_task(
    const void* x, int source, Py_ssize_t start, Py_ssize_t stop, int64_t* counts, float* low, float* high,
) noexcept nogil:
    cdef float tile[TILE]
    cdef Py_ssize_t n, i
    cdef uint32_t u
    cdef int32_t key, least = 0x7F800000, most = _ordered(_bits(-_float(0x7F800000))), zeros, odd
    cdef int64_t nans = 0, infs = 0, negative_infs = 0, all_zeros = 0
    while start < stop:
        n = _smaller(stop - start, TILE)
        _load(x, source, FLOAT32, start, n, tile)
        zeros = 0
        odd = 0
        for i in range(n):
            u = _bits(tile[i]) & 0x7FFFFFFF
            zeros += u == 0
            odd += u >= 0x7F800000
        all_zeros += zeros
        if odd == 0:
            for i in range(n):
                key = _ordered(_bits(tile[i]))
                least = key if key < least else least
                most = key if key > most else most
        else:
            for i in range(n):
                u = _bits(tile[i])
                if (u & 0x7FFFFFFF) > 0x7F800000:
                    nans += 1
                elif u == 0x7F800000:
                    infs += 1
                elif (u & 0x7FFFFFFF) == 0x7F800000:
                    negative_infs += 1
                else:
                    key = _ordered(u)
                    least = key if key < least else least
                    most = key if key > most else most
        start += n
    counts[0] = nans
    counts[1] = infs
    counts[2] = negative_infs
    counts[3] = all_zeros
    low[0] = _float(<uint32_t>_ordered(<uint32_t>least))
    high[0] = _float(<uint32_t>_ordered(<uint32_t>most))


def task_count(Py_ssize_t size):
    """Rows of partial results that `min_max` fills for `size` elements."""
    return (size + TASK - 1) // TASK


def min_max(
    const uint8_t[::1] x, int source, Py_ssize_t size, int64_t[:, ::1] counts, float[::1] low, float[::1] high,
    int n_threads,
):
    """Per task: NaN, +Inf, -Inf and zero counts, and the least and greatest finite value (+Inf, -Inf if there is none)."""
    cdef Py_ssize_t t
    for t in prange((size + TASK - 1) // TASK, nogil=True, schedule="static", num_threads=n_threads):
        _min_max_task(&x[0], source, t * TASK, _smaller((t + 1) * TASK, size), &counts[t, 0], &low[t], &high[t])


cdef void _absmax_into(
    const void* x, int source, Py_ssize_t start, Py_ssize_t n, int32_t* best, bint along,
) noexcept nogil:
    """Magnitudes as integers, whose order is that of the floats with NaN on top; `along`: one result per element."""
    cdef float tile[TILE]
    cdef Py_ssize_t m, i
    cdef int32_t u, most
    while n > 0:
        m = _smaller(n, TILE)
        _load(x, source, FLOAT32, start, m, tile)
        if along:
            for i in range(m):
                u = <int32_t>(_bits(tile[i]) & 0x7FFFFFFF)
                best[i] = u if u > best[i] else best[i]
            best += m
        else:
            most = best[0]
            for i in range(m):
                u = <int32_t>(_bits(tile[i]) & 0x7FFFFFFF)
                most = u if u > most else most
            best[0] = most
        start += m
        n -= m


cdef void _absmax_rows(
    const void* x, int source, Py_ssize_t outer, Py_ssize_t n, Py_ssize_t inner, Py_ssize_t c, int32_t* best,
) noexcept nogil:
    cdef Py_ssize_t o
    for o in range(outer):
        _absmax_into(x, source, (o * n + c) * inner, inner, best, False)


cdef void _absmax_columns(
    const void* x, int source, Py_ssize_t outer, Py_ssize_t n, Py_ssize_t start, Py_ssize_t stop, int32_t* best,
) noexcept nogil:
    cdef Py_ssize_t o
    for o in range(outer):
        _absmax_into(x, source, o * n + start, stop - start, best, True)


def absmax(
    const uint8_t[::1] x, int source, Py_ssize_t outer, Py_ssize_t inner, int32_t[::1] best, int n_threads,
):
    """best[c] = bits of max |x[:, c, :]| for x of (outer, best.size, inner); best holds zeros on entry."""
    cdef Py_ssize_t n = best.shape[0], c
    if x.shape[0] == 0:
        return
    if inner == 1:
        for c in prange((n + TILE - 1) // TILE, nogil=True, schedule="static", num_threads=n_threads):
            _absmax_columns(&x[0], source, outer, n, c * TILE, _smaller((c + 1) * TILE, n), &best[c * TILE])
    else:
        for c in prange(n, nogil=True, schedule="static", num_threads=n_threads):
            _absmax_rows(&x[0], source, outer, n, inner, c, &best[c])


cdef int64_t _histogram_task(
    const void* x, int source, double per_bin, Py_ssize_t half, Py_ssize_t start, Py_ssize_t stop, int64_t* counts,
) noexcept nogil:
    cdef float tile[TILE]
    cdef Py_ssize_t n, i
    cdef double position
    cdef int64_t outside = 0
    while start < stop:
        n = _smaller(stop - start, TILE)
        _load(x, source, FLOAT32, start, n, tile)
        for i in range(n):
            position = <double>tile[i] * per_bin        # exact: a power of two, and double has room for it
            if position >= -<double>half and position < <double>half:
                counts[half + <Py_ssize_t>floor(position)] += 1
            elif fabs(position) < 1e300:                # neither NaN nor Inf: |x| < 2^128, per_bin < 2^800
                outside += 1
        start += n
    return outside


def histogram(
    const uint8_t[::1] x, int source, Py_ssize_t size, int exponent, int bits, int64_t[:, ::1] counts, int n_threads,
):
    """Add to counts[part, floor(x / 2^(exponent - bits)) + 2^bits]; each part is one thread's share of x.

    Returns the number of finite values outside [-2^exponent, 2^exponent).
    """
    cdef Py_ssize_t parts = counts.shape[0], p
    cdef Py_ssize_t share = (size + parts - 1) // parts
    cdef double per_bin = ldexp(1.0, bits - exponent)
    cdef Py_ssize_t half = <Py_ssize_t>1 << bits
    cdef int64_t outside = 0
    if size == 0:
        return 0
    for p in prange(parts, nogil=True, schedule="static", num_threads=n_threads):
        outside += _histogram_task(&x[0], source, per_bin, half, _smaller(p * share, size),
                                   _smaller((p + 1) * share, size), &counts[p, 0])
    return outside


# ------------------------------------------------------------------------------------------------------ integer matmul
