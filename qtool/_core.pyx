# cython: language_level=3
"""The compiled core of qtool: loops over typed memoryviews, nothing else."""

# ---------------------------------------------------------------------------------------------------- threads and ISA

import os

from cython.parallel cimport parallel, prange, threadid
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uintptr_t
from libc.stdlib cimport free
from libc.string cimport memcmp, memcpy, memset


cdef extern from "_kernels/cpu.h" nogil:
    ctypedef int qt_isa
    ctypedef struct qt_named_mask:
        const char *name
        uint32_t mask
    const qt_named_mask *QT_CPU_FEATURES
    const qt_named_mask *QT_ISAS
    const int QT_CPU_FEATURE_COUNT
    const int QT_ISA_COUNT
    const qt_isa QT_ISA_AMX_INT8
    const uint32_t QT_CPU_AMX
    uint32_t qt_detect_cpu()
    int qt_openmp()


cdef extern from "_kernels/amx_permission.h" nogil:
    int qt_request_amx()


cdef extern from "_kernels/requantize.h" nogil:
    ctypedef struct qt_tile_end:
        const uint32_t *acc
        Py_ssize_t rows
        Py_ssize_t cols
        const uint32_t *row_term
        const uint32_t *b_zero
        const uint32_t *col_term
        const float *multiplier
        float lo
        float hi
        int32_t y_zero
        char *out
        Py_ssize_t ld


cdef extern from "_kernels/gemm_u8s8.h" nogil:
    ctypedef struct qt_gemm_u8s8:
        const char *name
        qt_isa isa
        int mr
        int nr
        int kr
        Py_ssize_t max_kc
        Py_ssize_t a_size
        Py_ssize_t b_size
        void (*pack_a)(const uint8_t *, Py_ssize_t, Py_ssize_t, Py_ssize_t, Py_ssize_t, uint8_t, void *,
                       uint32_t *) noexcept nogil
        void (*pack_b)(const uint8_t *, Py_ssize_t, Py_ssize_t, Py_ssize_t, Py_ssize_t, uint8_t, void *,
                       uint32_t *) noexcept nogil
        void (*run)(Py_ssize_t, const void *, const void *, uint32_t *, Py_ssize_t) noexcept nogil
        void (*begin)() noexcept nogil
        void (*end)() noexcept nogil
        void (*tile)(Py_ssize_t, const void *, const void *, Py_ssize_t, int, uint32_t *,
                     const qt_tile_end *) noexcept nogil
        void (*finish)(const qt_tile_end *) noexcept nogil
    const qt_gemm_u8s8 **QT_GEMM_U8S8
    const int QT_GEMM_U8S8_COUNT
    const qt_gemm_u8s8 *qt_choose_gemm_u8s8(uint32_t, qt_isa)


cdef extern from "_kernels/quantize.h" nogil:
    ctypedef struct qt_integer:
        int32_t qmin
        int32_t qmax
        int32_t mask
    ctypedef struct qt_small_float:
        uint32_t mantissa
        uint32_t min_exponent
        uint32_t cap
        uint32_t max_code
        uint32_t overflow
        uint32_t nan
        uint32_t sign_shift
        uint32_t nan_sign
        uint32_t zero_sign
    ctypedef struct qt_quantize:
        const char *name
        qt_isa isa
        void (*load)(const void *, int, int, Py_ssize_t, Py_ssize_t, float *) noexcept nogil
        void (*codes8)(const float *, const float *, const int32_t *, Py_ssize_t, int, qt_integer, Py_ssize_t,
                       uint8_t *) noexcept nogil
        void (*codes16)(const float *, const float *, const int32_t *, Py_ssize_t, int, qt_integer, Py_ssize_t,
                        uint16_t *) noexcept nogil
        void (*floats)(const float *, const float *, const float *, Py_ssize_t, int, const qt_small_float *, uint32_t,
                       Py_ssize_t, uint8_t *) noexcept nogil
        void (*range)(const float *, Py_ssize_t, float *, float *) noexcept nogil
        void (*pack)(const uint8_t *, int, Py_ssize_t, uint8_t *) noexcept nogil
    const qt_quantize **QT_QUANTIZE
    const int QT_QUANTIZE_COUNT
    const qt_quantize *qt_choose_quantize(uint32_t, qt_isa)
    int32_t qt_rint_within(float, float, float)


cdef extern from "_kernels/dequantize.h" nogil:
    ctypedef struct qt_dequantize:
        const char *name
        qt_isa isa
        void (*singles)(const void *, int, const float *, const float *, const float *, Py_ssize_t, int, Py_ssize_t,
                        Py_ssize_t, float *) noexcept nogil
        void (*halves)(const float *, const float *, Py_ssize_t, int, Py_ssize_t, uint16_t *) noexcept nogil
        void (*unpack)(const uint8_t *, int, Py_ssize_t, uint8_t *) noexcept nogil
    const qt_dequantize **QT_DEQUANTIZE
    const int QT_DEQUANTIZE_COUNT
    const qt_dequantize *qt_choose_dequantize(uint32_t, qt_isa)


cdef extern from "_kernels/statistics.h" nogil:
    enum:
        QT_STATS_BLOCK
        QT_STATS_BLOCK_16
        QT_STATS_LANES
    ctypedef struct qt_statistics:
        const char *name
        qt_isa isa
        void (*widen)(const uint16_t *, int, Py_ssize_t, float *) noexcept nogil
        void (*min_max_32)(const float *, Py_ssize_t, int64_t *, int32_t *, int32_t *) noexcept nogil
        void (*min_max_16)(const uint16_t *, int16_t, Py_ssize_t, int64_t *, int16_t *, int16_t *) noexcept nogil
        int32_t (*bins)(const float *, Py_ssize_t, int, int32_t, int32_t *) noexcept nogil
        void (*absmax_columns)(const float *, Py_ssize_t, int32_t *) noexcept nogil
        int32_t (*absmax_row)(const float *, Py_ssize_t, int32_t) noexcept nogil
        void (*abs_sum_columns)(const float *, Py_ssize_t, double *) noexcept nogil
        void (*abs_sum_row)(const float *, Py_ssize_t, double *) noexcept nogil
    const qt_statistics **QT_STATISTICS
    const int QT_STATISTICS_COUNT
    const qt_statistics *qt_choose_statistics(uint32_t, qt_isa)


cdef uint32_t _features = qt_detect_cpu()
cdef str _cap = "auto"
cdef str _amx = "absent"               # or not asked, granted, refused
cdef const qt_gemm_u8s8 *_gemm = NULL  # never NULL after import
cdef const qt_quantize *_quantize = NULL
cdef const qt_dequantize *_dequantize = NULL
cdef const qt_statistics *_statistics = NULL


def has_openmp():
    """Whether parallel regions have more than one thread."""
    return bool(qt_openmp())


def isa_names():
    """The values of QTOOL_ISA besides 'auto', weakest first."""
    return tuple([QT_ISAS[i].name.decode() for i in range(QT_ISA_COUNT)])


def supported_isas():
    """Those of isa_names() whose features this processor and operating system have."""
    return tuple([
        QT_ISAS[i].name.decode() for i in range(QT_ISA_COUNT) if _features & QT_ISAS[i].mask == QT_ISAS[i].mask
    ])


def isa_state():
    """(features, supported, cap, AMX permission, families): what isa_info() puts into words.

    A family is (name, chosen row, rows); a row is (name, its ISA), best first.
    """
    features = tuple([
        QT_CPU_FEATURES[i].name.decode() for i in range(QT_CPU_FEATURE_COUNT) if _features & QT_CPU_FEATURES[i].mask
    ])
    gemm = tuple([_row(QT_GEMM_U8S8[i].name, QT_GEMM_U8S8[i].isa) for i in range(QT_GEMM_U8S8_COUNT)])
    quantize = tuple([_row(QT_QUANTIZE[i].name, QT_QUANTIZE[i].isa) for i in range(QT_QUANTIZE_COUNT)])
    dequantize = tuple([_row(QT_DEQUANTIZE[i].name, QT_DEQUANTIZE[i].isa) for i in range(QT_DEQUANTIZE_COUNT)])
    statistics = tuple([_row(QT_STATISTICS[i].name, QT_STATISTICS[i].isa) for i in range(QT_STATISTICS_COUNT)])
    families = (
        ("gemm_u8s8", _row(_gemm.name, _gemm.isa), gemm),
        ("quantize", _row(_quantize.name, _quantize.isa), quantize),
        ("dequantize", _row(_dequantize.name, _dequantize.isa), dequantize),
        ("statistics", _row(_statistics.name, _statistics.isa), statistics),
    )
    return features, supported_isas(), _cap, _amx, families


cdef tuple _row(const char *name, qt_isa isa):
    return name.decode(), QT_ISAS[isa].name.decode()


cdef void _choose(uint32_t features, qt_isa cap) noexcept:
    """The pointer of every family."""
    global _gemm, _quantize, _dequantize, _statistics
    _gemm = qt_choose_gemm_u8s8(features, cap)
    _quantize = qt_choose_quantize(features, cap)
    _dequantize = qt_choose_dequantize(features, cap)
    _statistics = qt_choose_statistics(features, cap)


def set_isa(str name):
    """Cap dispatch at ``name`` and return the name of the chosen matrix kernel; 'auto' lifts the cap.

    Asks the operating system for AMX if a kernel with tiles is the best; if it refuses, the next row is taken.
    Not thread-safe: it changes which kernel the next call takes.

    Raises:
        ValueError: If there is no such name.
        RuntimeError: If this processor does not have it.
    """
    global _cap, _amx
    names = isa_names()
    if name == "auto":
        cap = len(names) - 1
    elif name in names:
        cap = names.index(name)
        if _features & QT_ISAS[<int>cap].mask != QT_ISAS[<int>cap].mask:
            raise RuntimeError(
                f"QTOOL_ISA={name} is not supported by this processor; supported: auto, {', '.join(supported_isas())}."
            )
    else:
        raise ValueError(f"QTOOL_ISA={name} is not an instruction set; expected one of auto, {', '.join(names)}.")
    _choose(_features, <qt_isa>cap)
    if _gemm.isa == QT_ISA_AMX_INT8:
        _amx = "granted" if qt_request_amx() else "refused"
        if _amx == "refused":
            _choose(_features & ~QT_CPU_AMX, <qt_isa>cap)
    elif _amx == "absent" and _features & QT_CPU_AMX == QT_CPU_AMX:
        _amx = "not asked"
    _cap = name
    return _gemm.name.decode()


set_isa(os.environ.get("QTOOL_ISA") or "auto")


cdef extern from "_kernels/workspace.h" nogil:
    void *qt_allocate(size_t)


cdef enum:
    KEPT_BUFFERS = 8
    KEPT_BYTES = 67108864   # 64 MiB: what a process holds on to between calls

cdef void *_kept[KEPT_BUFFERS]
cdef Py_ssize_t _kept_size[KEPT_BUFFERS]
cdef Py_ssize_t _kept_total = 0


cdef class Buffer:
    """Memory for one call, aligned to a cache line. Allocated before a parallel region: nothing inside may fail.

    Freed memory is kept for the next call: fresh pages cost more than a small product. The GIL guards the list.
    """
    cdef void *memory
    cdef char *start
    cdef Py_ssize_t size

    def __cinit__(self, Py_ssize_t size):
        global _kept_total
        cdef int i, best = -1
        size += 64
        for i in range(KEPT_BUFFERS):   # the smallest that is large enough and not much too large
            if _kept[i] != NULL and size <= _kept_size[i] <= 2 * size + 65536:
                if best < 0 or _kept_size[i] < _kept_size[best]:
                    best = i
        if best >= 0:
            self.memory, self.size = _kept[best], _kept_size[best]
            _kept[best] = NULL
            _kept_total -= self.size
        else:
            self.memory, self.size = qt_allocate(<size_t>size), size
        if self.memory == NULL:
            raise MemoryError(f"Cannot allocate {size} bytes for a kernel.")
        self.start = <char *>((<uintptr_t>self.memory + 63) & ~<uintptr_t>63)

    def __dealloc__(self):
        global _kept_total
        cdef int i, oldest = 0
        if self.memory == NULL:
            return
        if self.size > KEPT_BYTES // 2:
            free(self.memory)
            return
        for i in range(KEPT_BUFFERS):
            if _kept[i] == NULL and _kept_total + self.size <= KEPT_BYTES:
                _kept[i], _kept_size[i] = self.memory, self.size
                _kept_total += self.size
                return
        for i in range(KEPT_BUFFERS):   # no room: make some for the calls to come, whose sizes are like this one
            if _kept[i] != NULL:
                free(_kept[i])
                _kept[i] = NULL
        _kept[oldest], _kept_size[oldest] = self.memory, self.size
        _kept_total = self.size


cdef inline Py_ssize_t _min(Py_ssize_t a, Py_ssize_t b) noexcept nogil:
    return a if a < b else b


cdef inline Py_ssize_t _max(Py_ssize_t a, Py_ssize_t b) noexcept nogil:
    return a if a > b else b


cdef inline Py_ssize_t _ceil_div(Py_ssize_t a, Py_ssize_t b) noexcept nogil:
    return (a + b - 1) // b


cdef inline Py_ssize_t _round_up(Py_ssize_t a, Py_ssize_t b) noexcept nogil:
    return _ceil_div(a, b) * b


# ------------------------------------------------------------------------------------------------- elementwise kernels
#
# Quantize, dequantize, pack and count, element by element.
#
#   q = saturate(rint(x / s) + z)      true division in the precision of the scale, clamp in floating point, round half
#                                      to even, then add z in integers
#   y = (x - z) * s                    one rounding to the output type
#
# Layout: a tensor is `rows` of `cols` contiguous elements; see Layout for the scale of an element. Tasks are equal
# ranges of elements, so a result never depends on the number of threads. Within a task, runs of elements whose scale
# index moves by one every `block` elements go to the row of the instruction set (_kernels/quantize.h, dequantize.h).

cdef enum Source:          # element types of x: the numbers are those of _SOURCES of kernels/elementwise.py
    FLOAT32 = 0
    FLOAT16 = 1
    BFLOAT16 = 2
    INT32 = 3
    INT8 = 4
    UINT8 = 5
    INT16 = 6
    UINT16 = 7
    TABLE = 8              # one byte, looked up in a table of float32
    TABLE4 = 9             # the same, by its low four bits

cdef enum:
    TILE = 1024            # elements of scratch on the stack of a task
    TASK = 32768           # elements of one task
    PACK_TASK = 8192       # groups of codes that fill whole bytes

cdef struct Layout:
    # The scale of column c of row r has the index ((r / n_mid) * k0 + (r % n_mid) / b_mid) * k1 + c / b_col.
    Py_ssize_t cols, n_mid, b_mid, k0, k1, b_col

ctypedef fused code_t:
    uint8_t
    uint16_t


cdef inline uint32_t _bits(float f) noexcept nogil:
    cdef uint32_t u
    memcpy(&u, &f, 4)
    return u


cdef inline float _float(uint32_t u) noexcept nogil:
    cdef float f
    memcpy(&f, &u, 4)
    return f


cdef inline Py_ssize_t _smaller(Py_ssize_t a, Py_ssize_t b) noexcept nogil:
    return a if a < b else b


cdef Layout _layout(tuple numbers):
    cdef Layout layout
    layout.cols, layout.n_mid, layout.b_mid, layout.k0, layout.k1, layout.b_col = numbers
    return layout


cdef inline Py_ssize_t _run(
    const Layout* at, Py_ssize_t start, Py_ssize_t stop, Py_ssize_t longest, Py_ssize_t* scale, Py_ssize_t* block,
) noexcept nogil:
    """Length of the run of elements that begins at `start`, its first scale, and the elements per scale."""
    cdef Py_ssize_t row = start // at.cols
    cdef Py_ssize_t column = start - row * at.cols
    cdef Py_ssize_t length = _smaller(_smaller(at.cols - column, stop - start), longest)
    cdef Py_ssize_t into = column % at.b_col
    scale[0] = ((row // at.n_mid) * at.k0 + (row % at.n_mid) // at.b_mid) * at.k1 + column // at.b_col
    block[0] = at.b_col - into                            # the rest of a block that a task or a tile has cut
    return _smaller(length, block[0]) if into else length


cdef qt_small_float _format(tuple numbers):
    cdef qt_small_float form
    cdef int bias, signed_nan, negative_zero
    form.mantissa, bias, form.max_code, form.overflow, form.nan, signed_nan, negative_zero, form.sign_shift = numbers
    form.min_exponent = 128 - bias                                                        # of float32
    form.cap = ((form.max_code >> form.mantissa) + 129 - bias) << 23                      # beyond every rounding
    form.nan_sign = <uint32_t>1 if signed_nan else 0
    form.zero_sign = <uint32_t>1 if negative_zero else 0
    return form


cdef inline const float* _rounded(
    const void* x, int source, int precision, Py_ssize_t start, Py_ssize_t n, float* tile
) noexcept nogil:
    """n elements rounded to `precision`, as float32: where they are, or in the tile."""
    if source == FLOAT32 and precision == FLOAT32:
        return <const float*>x + start
    _quantize.load(x, source, precision, start, n, tile)
    return tile


def round_to(const uint8_t[::1] x, int source, int precision, float[::1] y):
    """y = x rounded once to `precision`, held in float32."""
    if y.shape[0] > 0:
        _quantize.load(&x[0], source, precision, 0, y.shape[0], &y[0])


# float32 -> integer codes

cdef void _quantize_task(
    const void* x, int source, int precision, const float* s, const int32_t* z, const Layout* layout,
    qt_integer type, Py_ssize_t start, Py_ssize_t stop, code_t* y,
) noexcept nogil:
    cdef float tile[TILE]
    cdef Py_ssize_t n, k = 0, block = 0
    cdef Py_ssize_t longest = TASK if source == FLOAT32 and precision == FLOAT32 else TILE
    cdef const float* values
    while start < stop:
        n = _run(layout, start, stop, longest, &k, &block)
        values = _rounded(x, source, precision, start, n, tile)
        if code_t is uint8_t:
            _quantize.codes8(values, s + k, z + k, block, precision, type, n, y + start)
        else:
            _quantize.codes16(values, s + k, z + k, block, precision, type, n, y + start)
        start += n


def quantize_integer(
    const uint8_t[::1] x, int source, int precision, const float[::1] scale, const int32_t[::1] zero_point,
    tuple layout, int qmin, int qmax, int bits, code_t[::1] y, int n_threads,
):
    """y[i] = saturate(rint(x[i] / s) + z), as the low `bits` bits of each y.

    x holds y.size elements of type `source`; scale and zero_point, of one size, are indexed by `layout`.
    """
    cdef Py_ssize_t size = y.shape[0], t
    cdef Layout at = _layout(layout)
    cdef qt_integer type
    type.qmin, type.qmax, type.mask = qmin, qmax, (1 << bits) - 1
    if size == 0:
        return
    for t in prange((size + TASK - 1) // TASK, nogil=True, schedule="static", num_threads=n_threads):
        _quantize_task(&x[0], source, precision, &scale[0], &zero_point[0], &at, type,
                       t * TASK, _smaller((t + 1) * TASK, size), &y[0])


# float32 -> small floats

cdef void _quantize_float_task(
    const void* x, int source, int precision, const float* s, const float* z, const Layout* layout,
    const qt_small_float* form, uint32_t overflow, Py_ssize_t start, Py_ssize_t stop, uint8_t* y,
) noexcept nogil:
    cdef float tile[TILE]
    cdef Py_ssize_t n, k = 0, block = 0
    while start < stop:
        n = _run(layout, start, stop, TILE, &k, &block)
        _quantize.floats(_rounded(x, source, precision, start, n, tile), s + k, z + k, block, precision, form,
                         overflow, n, y + start)
        start += n


def quantize_float(
    const uint8_t[::1] x, int source, int precision, const float[::1] scale, const float[::1] zero_point, tuple layout,
    tuple format, bint saturate, uint8_t[::1] y, int n_threads,
):
    """y[i] = code of the small float nearest to x[i] / s + z, ties to even; a zero point of -0 adds nothing.

    `format` is (mantissa, bias, max_code, overflow, nan, signed_nan, negative_zero, sign_shift) of dtypes.FloatFormat.
    """
    cdef Py_ssize_t size = y.shape[0], t
    cdef Layout at = _layout(layout)
    cdef qt_small_float form = _format(format)
    cdef uint32_t overflow = form.max_code if saturate else form.overflow
    if size == 0:
        return
    for t in prange((size + TASK - 1) // TASK, nogil=True, schedule="static", num_threads=n_threads):
        _quantize_float_task(&x[0], source, precision, &scale[0], &zero_point[0], &at, &form, overflow,
                             t * TASK, _smaller((t + 1) * TASK, size), &y[0])


# codes -> float32, float16, bfloat16

cdef void _dequantize_task(
    const void* x, int source, const float* table, const float* s, const float* z, const Layout* layout, bint stream,
    Py_ssize_t start, Py_ssize_t stop, float* y,
) noexcept nogil:
    cdef Py_ssize_t n, k = 0, block = 0
    while start < stop:
        n = _run(layout, start, stop, TASK, &k, &block)
        _dequantize.singles(x, source, table, s + k, z + k, block, stream, start, n, y + start)
        start += n


cdef void _dequantize_half_task(
    const void* x, int source, const float* table, const float* s, const float* z, const Layout* layout,
    bint brain, Py_ssize_t start, Py_ssize_t stop, uint16_t* y,
) noexcept nogil:
    cdef float tile[TILE]
    cdef float ones[TILE]
    cdef Py_ssize_t n, i, k = 0, block = 0
    for i in range(TILE):
        ones[i] = 1.0
    while start < stop:
        n = _run(layout, start, stop, TILE, &k, &block)
        # The difference alone, then a product that is rounded once.
        _dequantize.singles(x, source, table, ones, z + k, block, False, start, n, tile)
        _dequantize.halves(tile, s + k, block, brain, n, y + start)
        start += n


def dequantize(
    const uint8_t[::1] x, int source, const float[::1] table, const float[::1] scale, const float[::1] zero_point,
    tuple layout, bint stream, float[::1] y, int n_threads,
):
    """y[i] = (x[i] - z) * s in float32. `table` (256 values) decodes one-byte codes where source is TABLE or TABLE4.

    `stream` lets the stores pass the cache by: for results that the cache would not hold anyway.
    """
    cdef Py_ssize_t size = y.shape[0], t
    cdef Layout at = _layout(layout)
    if size == 0:
        return
    for t in prange((size + TASK - 1) // TASK, nogil=True, schedule="static", num_threads=n_threads):
        _dequantize_task(&x[0], source, &table[0], &scale[0], &zero_point[0], &at, stream,
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


# Packing: low bits first. A group is the fewest codes that fill whole bytes; the codes after the last whole group are
# written, or read, bit by bit.

def pack(const uint8_t[::1] codes, int bits, uint8_t[::1] raw, int n_threads):
    """Codes of 2, 4 or 6 bits (the low bits of each byte) to a dense stream; raw.size = ceil(codes.size * bits / 8)."""
    cdef Py_ssize_t group = 4 if bits == 6 else 8 // bits, group_bytes = 3 if bits == 6 else 1
    cdef Py_ssize_t size = codes.shape[0], whole = size // group, t, i, byte
    cdef uint32_t rest = 0
    if size == 0:
        return
    for t in prange((whole + PACK_TASK - 1) // PACK_TASK, nogil=True, schedule="static", num_threads=n_threads):
        _quantize.pack(&codes[0] + t * PACK_TASK * group, bits, _smaller(PACK_TASK, whole - t * PACK_TASK),
                       &raw[0] + t * PACK_TASK * group_bytes)
    for i in range(whole * group, size):
        rest |= <uint32_t>(codes[i] & ((1 << bits) - 1)) << <int>((i - whole * group) * bits)
    for byte in range(whole * group_bytes, raw.shape[0]):
        raw[byte] = <uint8_t>rest
        rest >>= 8


def unpack(const uint8_t[::1] raw, int bits, uint8_t[::1] codes, int n_threads):
    """The inverse of `pack`: each code in the low bits of a byte, the bits above it zero."""
    cdef Py_ssize_t group = 4 if bits == 6 else 8 // bits, group_bytes = 3 if bits == 6 else 1
    cdef Py_ssize_t size = codes.shape[0], whole = size // group, t, i, byte
    cdef uint32_t rest = 0
    if size == 0:
        return
    for t in prange((whole + PACK_TASK - 1) // PACK_TASK, nogil=True, schedule="static", num_threads=n_threads):
        _dequantize.unpack(&raw[0] + t * PACK_TASK * group_bytes, bits, _smaller(PACK_TASK, whole - t * PACK_TASK),
                           &codes[0] + t * PACK_TASK * group)
    for byte in range(whole * group_bytes, raw.shape[0]):
        rest |= <uint32_t>raw[byte] << <int>((byte - whole * group_bytes) * 8)
    for i in range(whole * group, size):
        codes[i] = <uint8_t>(rest & ((1 << bits) - 1))
        rest >>= bits


# Statistics
#
# The loops of one block are in _kernels/statistics_body.h, compiled per ISA; here is what surrounds them. No result
# depends on the ISA or on the number of threads: counts, ranges and bins are integers, and the only sums of floats,
# those of |x|, have one order (abs_sum). Halves go through a tile of float32, which the first cache holds.

cdef inline int32_t _ordered(uint32_t u) noexcept nogil:
    """Bits of a float32 as an integer of the same order (-0 just below +0); it is its own inverse."""
    cdef int32_t s = <int32_t>u
    return s ^ ((s >> 31) & 0x7FFFFFFF)


cdef inline const float* _widened(
    const qt_statistics* kernel, const void* x, int source, Py_ssize_t start, Py_ssize_t n, float* tile
) noexcept nogil:
    """n <= TILE elements as float32: where they are, or converted into the tile."""
    if source == FLOAT32:
        return <const float*>x + start
    kernel.widen(<const uint16_t*>x + start, source == BFLOAT16, n, tile)
    return tile


cdef inline float _half_of_key(const qt_statistics* kernel, int16_t key, int source) noexcept nogil:
    cdef uint16_t h = <uint16_t>(key ^ ((key >> 15) & 0x7FFF))
    cdef float value = 0
    kernel.widen(&h, source == BFLOAT16, 1, &value)
    return value


cdef struct MinMaxPart:
    int64_t counts[4]          # NaN, +Inf, -Inf, zeros
    int32_t least              # ordered bits of float32
    int32_t most


cdef void _min_max_part(
    const qt_statistics* kernel, const void* x, int source, Py_ssize_t start, Py_ssize_t stop, MinMaxPart* part
) noexcept nogil:
    cdef int16_t inf = 0x7F80 if source == BFLOAT16 else 0x7C00
    cdef int16_t least16 = inf, most16 = <int16_t>(-1 - inf)
    cdef Py_ssize_t n
    memset(part.counts, 0, sizeof(part.counts))
    part.least = 0x7F800000
    part.most = _ordered(0xFF800000)
    while start < stop:
        if source == FLOAT32:
            n = _smaller(stop - start, QT_STATS_BLOCK)
            kernel.min_max_32(<const float*>x + start, n, part.counts, &part.least, &part.most)
        else:
            n = _smaller(stop - start, QT_STATS_BLOCK_16)
            kernel.min_max_16(<const uint16_t*>x + start, inf, n, part.counts, &least16, &most16)
        start += n
    if source != FLOAT32:
        part.least = _ordered(_bits(_half_of_key(kernel, least16, source)))
        part.most = _ordered(_bits(_half_of_key(kernel, most16, source)))


def min_max(const uint8_t[::1] x, int source, Py_ssize_t size, int n_threads):
    """NaN, +Inf, -Inf and zero counts, least and greatest finite value (+Inf and -Inf if there is none; -0 < +0).

    Each thread has one part of x, a multiple of 4096 elements but for the last.
    """
    cdef const qt_statistics* kernel = _statistics
    cdef Py_ssize_t share = _round_up(_ceil_div(size, n_threads), 4096), parts = _ceil_div(size, _max(1, share)), p
    cdef Buffer memory
    cdef MinMaxPart whole
    cdef MinMaxPart* part
    cdef int i
    if parts <= 1:             # without entering the OpenMP runtime: a call of 1M elements takes 150 us
        with nogil:
            _min_max_part(kernel, &x[0] if size else NULL, source, 0, size, &whole)
    else:
        memory = Buffer(parts * <Py_ssize_t>sizeof(MinMaxPart))
        part = <MinMaxPart*>memory.start
        for p in prange(parts, nogil=True, schedule="static", num_threads=n_threads):
            _min_max_part(kernel, &x[0], source, p * share, _smaller((p + 1) * share, size), part + p)
        whole = part[0]
        for p in range(1, parts):
            for i in range(4):
                whole.counts[i] += part[p].counts[i]
            whole.least = <int32_t>_min(whole.least, part[p].least)
            whole.most = <int32_t>_max(whole.most, part[p].most)
    return (
        whole.counts[0], whole.counts[1], whole.counts[2], whole.counts[3],
        _float(<uint32_t>_ordered(<uint32_t>whole.least)), _float(<uint32_t>_ordered(<uint32_t>whole.most)),
    )


# Per index c of an axis, x being (outer, n, inner). A task is ROWS of `outer` by as many c as make a tile; it has its
# own partial result, so that tall matrices have tasks enough for every thread.

cdef enum:
    ROWS = 1024


def channel_blocks(Py_ssize_t outer):
    """Rows of partial results that `absmax` and `abs_sum` fill."""
    return _ceil_div(outer, ROWS)


cdef void _absmax_task(
    const qt_statistics* kernel, const void* x, int source, Py_ssize_t first, Py_ssize_t last, Py_ssize_t n,
    Py_ssize_t inner, Py_ssize_t c, Py_ssize_t width, int32_t* best,
) noexcept nogil:
    cdef float tile[TILE]
    cdef Py_ssize_t o, j, at, stop, m
    for o in range(first, last):
        at = (o * n + c) * inner
        if inner == 1:
            kernel.absmax_columns(_widened(kernel, x, source, at, width, tile), width, best)
            continue
        for j in range(width):
            stop = at + inner
            while at < stop:
                m = _smaller(stop - at, TILE)
                best[j] = kernel.absmax_row(_widened(kernel, x, source, at, m, tile), m, best[j])
                at += m


def absmax(
    const uint8_t[::1] x, int source, Py_ssize_t outer, Py_ssize_t inner, int32_t[:, ::1] best, int n_threads,
):
    """max over b of best[b, c] = bits of max |x[:, c, :]|, x of (outer, best.shape[1], inner); zeros on entry."""
    cdef const qt_statistics* kernel = _statistics
    cdef Py_ssize_t blocks = best.shape[0], n = best.shape[1], width = _max(1, TILE // _max(1, inner)), t, b, c
    cdef Py_ssize_t chunks = _ceil_div(n, width)
    if x.shape[0] == 0:
        return
    for t in prange(blocks * chunks, nogil=True, schedule="static", num_threads=n_threads):
        b = t // chunks
        c = t % chunks * width
        _absmax_task(kernel, &x[0], source, b * ROWS, _smaller((b + 1) * ROWS, outer), n, inner, c,
                     _smaller(width, n - c), &best[b, c])


cdef void _abs_sum_task(
    const qt_statistics* kernel, const void* x, int source, Py_ssize_t first, Py_ssize_t last, Py_ssize_t n,
    Py_ssize_t inner, Py_ssize_t c, Py_ssize_t width, double* total,
) noexcept nogil:
    cdef float tile[TILE]
    cdef double lanes[QT_STATS_LANES]
    cdef Py_ssize_t o, j, at, stop, m
    cdef int i, half
    for o in range(first, last):
        at = (o * n + c) * inner
        if inner == 1:
            kernel.abs_sum_columns(_widened(kernel, x, source, at, width, tile), width, total)
            continue
        for j in range(width):
            stop = at + inner
            memset(lanes, 0, sizeof(lanes))
            while at < stop:
                m = _smaller(stop - at, TILE)                  # TILE is a multiple of the lanes
                kernel.abs_sum_row(_widened(kernel, x, source, at, m, tile), m, lanes)
                at += m
            half = QT_STATS_LANES // 2
            while half > 0:
                for i in range(half):
                    lanes[i] += lanes[i + half]
                half = half // 2
            total[j] += lanes[0]


def abs_sum(
    const uint8_t[::1] x, int source, Py_ssize_t outer, Py_ssize_t inner, double[:, ::1] total, int n_threads,
):
    """total[b, c] = sum of |x[o, c, :]| over the o of block b, x of (outer, total.shape[1], inner); zeros on entry.

    In double and in one order: element i of a row x[o, c, :] is added to lane i mod 16, the lanes are added in halves
    (8 to 8, 4 to 4, 2 to 2, 1 to 1), and the rows of a block of 1024 in the order of o.
    """
    cdef const qt_statistics* kernel = _statistics
    cdef Py_ssize_t blocks = total.shape[0], n = total.shape[1], width = _max(1, TILE // _max(1, inner)), t, b, c
    cdef Py_ssize_t chunks = _ceil_div(n, width)
    if x.shape[0] == 0:
        return
    for t in prange(blocks * chunks, nogil=True, schedule="static", num_threads=n_threads):
        b = t // chunks
        c = t % chunks * width
        _abs_sum_task(kernel, &x[0], source, b * ROWS, _smaller((b + 1) * ROWS, outer), n, inner, c,
                      _smaller(width, n - c), &total[b, c])


# The histogram counts into 32-bit counters, up to four sets of them: a run of equal values would otherwise wait for its
# own last increment. A set begins 80 bytes beyond a multiple of 4096 after the last: at equal offsets in a page, the
# processor takes a load from one set for a load of what was just stored to another.

cdef enum:
    SETS_SIZE = 262144         # bytes of all sets of one thread, a part of the second cache
    FLUSH = 1073741824         # elements after which 32-bit counters are emptied


cdef Py_ssize_t _inside(
    const float* v, Py_ssize_t n, int32_t limit, float* kept, int64_t* outside
) noexcept nogil:
    """Keep the x with -limit <= x < limit, limit being the bits of a float; count the other finite ones."""
    cdef Py_ssize_t i, m = 0
    cdef uint32_t u
    cdef int32_t magnitude
    for i in range(n):
        u = _bits(v[i])
        magnitude = <int32_t>(u & 0x7FFFFFFF)
        if magnitude < 0x7F800000:
            if magnitude - <int32_t>(u >> 31) < limit:
                kept[m] = v[i]
                m += 1
            else:
                outside[0] += 1
    return m


cdef void _flush(int32_t* sets, int n_sets, Py_ssize_t stride, Py_ssize_t n_bins, int64_t* counts) noexcept nogil:
    cdef Py_ssize_t i
    cdef int s
    for s in range(n_sets):
        for i in range(n_bins):
            counts[i] += sets[s * stride + i]
    memset(sets, 0, <size_t>(n_sets * stride * 4))


cdef int64_t _histogram_task(
    const qt_statistics* kernel, const void* x, int source, int k, int32_t limit, int32_t half, Py_ssize_t start,
    Py_ssize_t stop, int32_t* sets, int n_sets, Py_ssize_t stride, int64_t* counts,
) noexcept nogil:
    cdef float tile[TILE]
    cdef float kept[TILE]
    cdef int32_t bins[TILE]
    cdef const float* v
    cdef int32_t* a = sets
    cdef int32_t* b = sets + (1 % n_sets) * stride
    cdef int32_t* c = sets + (2 % n_sets) * stride
    cdef int32_t* d = sets + (3 % n_sets) * stride
    cdef Py_ssize_t n, i, pending = 0
    cdef int64_t outside = 0
    memset(sets, 0, <size_t>(n_sets * stride * 4))
    while start < stop:
        n = _smaller(stop - start, TILE)
        v = _widened(kernel, x, source, start, n, tile)
        start += n
        if kernel.bins(v, n, k, half, bins) >= limit:
            n = _inside(v, n, limit, kept, &outside)
            kernel.bins(kept, n, k, half, bins)
        if n > 0 and memcmp(bins, bins + 1, <size_t>(n - 1) * 4) == 0:     # all in one bin, as in a tensor of zeros
            a[bins[0]] += <int32_t>n
        else:
            for i in range(0, n - 3, 4):
                a[bins[i]] += 1
                b[bins[i + 1]] += 1
                c[bins[i + 2]] += 1
                d[bins[i + 3]] += 1
            for i in range(n & ~<Py_ssize_t>3, n):
                a[bins[i]] += 1
        pending += n
        if pending >= FLUSH:
            _flush(sets, n_sets, stride, 2 * <Py_ssize_t>half, counts)
            pending = 0
    _flush(sets, n_sets, stride, 2 * <Py_ssize_t>half, counts)
    return outside


def histogram(
    const uint8_t[::1] x, int source, Py_ssize_t size, int exponent, int bits, int64_t[:, ::1] counts, int n_threads,
):
    """Add to counts[part, floor(x / 2^(exponent - bits)) + 2^bits]; each part is one thread's share of x.

    Returns the number of finite values outside [-2^exponent, 2^exponent).
    """
    cdef const qt_statistics* kernel = _statistics
    cdef Py_ssize_t parts = counts.shape[0], p
    cdef Py_ssize_t share = (size + parts - 1) // parts
    cdef Py_ssize_t stride = _round_up(<Py_ssize_t>2 << bits, 1024) + 20
    cdef int n_sets = <int>_max(1, _min(4, SETS_SIZE // ((<Py_ssize_t>2 << bits) * 4)))
    cdef int32_t limit = (exponent + 127) << 23 if exponent > -127 else <int32_t>1 << (exponent + 149)
    cdef int64_t outside = 0
    cdef Buffer memory
    if size == 0:
        return 0
    n_sets = 2 if n_sets == 3 else n_sets
    memory = Buffer(parts * n_sets * stride * 4)
    cdef int32_t* sets = <int32_t*>memory.start
    for p in prange(parts, nogil=True, schedule="static", num_threads=n_threads):
        outside += _histogram_task(kernel, &x[0], source, bits - exponent, limit, <int32_t>1 << bits,
                                   _smaller(p * share, size), _smaller((p + 1) * share, size),
                                   sets + p * n_sets * stride, n_sets, stride, &counts[p, 0])
    return outside


# ------------------------------------------------------------------------------------------------------ integer matmul

# Products: pack all of B once; then one task = a block of rows of A (packed by the task) times a range of columns.
#
#   for each task:  pack A block (mc x K)           -> L2
#     for each nc columns:  acc = 0
#       for each kc of K, each B panel, each A panel:  micro-kernel    (B panel and A panel of kc stay in L1)
#       correct zero points, requantize, write      (the accumulators never leave the cache)
#
# If the kernel has tile() and the parameters of the rows are the same for all rows, the fused way:
#
#   for each task:  pack A block (mc x K, up to 768 KiB)   -> L2, unless this thread packed it for its last task
#     for each B panel, each slice of K (512 if K > 1024), each A panel:
#       tile()      (B slice stays in L1; carries out the end of the tile before: corrections, requantization, store)
#
# A convolution is the same with the gathered columns of x as A and the weights of a group as B.

cdef extern from "_kernels/requantize.h" nogil:
    ctypedef int qt_form
    const qt_form QT_FORM_MULTIPLIER
    const qt_form QT_FORM_LITERAL
    ctypedef struct qt_requantize:
        qt_form form
        float y_scale
        float lo
        float hi
        int32_t y_zero
    void qt_correct_row(uint32_t *, Py_ssize_t, uint32_t, uint32_t, uint32_t, const uint32_t *, const uint32_t *,
                        const uint32_t *)
    void qt_multipliers(float, const float *, float, Py_ssize_t, float *)
    void qt_requantize_row(const qt_requantize *, const uint32_t *, Py_ssize_t, float, const float *, const float *,
                           uint8_t *)
    void qt_scatter_u8(const uint8_t *, Py_ssize_t, Py_ssize_t, Py_ssize_t, uint8_t *, Py_ssize_t)
    void qt_scatter_u32(const uint32_t *, Py_ssize_t, Py_ssize_t, Py_ssize_t, uint32_t *, Py_ssize_t)


cdef extern from "_kernels/conv.h" nogil:
    ctypedef struct qt_conv:
        Py_ssize_t[3] size
        Py_ssize_t[3] kernel
        Py_ssize_t[3] out
        Py_ssize_t[3] stride
        Py_ssize_t[3] pad
        Py_ssize_t[3] dilation
        Py_ssize_t channels
        uint8_t outside
    void qt_im2col(const qt_conv *, const uint8_t *, Py_ssize_t, Py_ssize_t, uint8_t *, Py_ssize_t)
    void qt_depthwise_line(const qt_conv *, const uint8_t *, const uint8_t *, int, int, int32_t, int32_t, uint32_t,
                           Py_ssize_t, Py_ssize_t, uint32_t *)


cdef struct Product:
    # Shape, blocking and packed B of a family of equal products.
    const qt_gemm_u8s8 *kernel
    Py_ssize_t m
    Py_ssize_t n
    Py_ssize_t k
    Py_ssize_t n_padded
    Py_ssize_t k_padded
    Py_ssize_t mc            # rows of a task
    Py_ssize_t nc            # columns of an accumulator tile
    Py_ssize_t kc            # K of a block
    Py_ssize_t slice         # K of a call of tile()
    bint fused               # tile() carries out the epilogue
    Py_ssize_t row_blocks
    Py_ssize_t col_ranges
    Py_ssize_t cols          # of a range, a multiple of nr
    uint8_t a_flip           # 0x80 if a is signed
    uint8_t b_flip           # 0x80 if b is unsigned
    char *b_packed
    Py_ssize_t b_bytes       # packed, of one item
    uint32_t *colsum         # n_padded per item
    const qt_requantize *requantize   # NULL: int32 out
    bint transposed          # out[col, row] (convolution) instead of out[row, col]


cdef struct Sides:
    # Parameters of the rows and columns of one item; a step of 0 repeats one value, bias NULL is none.
    const int32_t *a_zero
    Py_ssize_t a_zero_step
    const int32_t *b_zero
    Py_ssize_t b_zero_step
    const float *a_scale
    Py_ssize_t a_scale_step
    const float *b_scale
    Py_ssize_t b_scale_step
    const int32_t *bias


cdef struct Batch:
    # Operands of a batch of products, with steps from item to item, row to row, and along K or the columns.
    Py_ssize_t size
    const uint8_t *a
    Py_ssize_t a_item_step
    Py_ssize_t row_stride
    Py_ssize_t k_stride
    const Py_ssize_t *a_item    # item of each product, NULL: 0
    const Py_ssize_t *b_item
    Sides sides                 # of the first product
    Py_ssize_t a_zero_item
    Py_ssize_t b_zero_item
    Py_ssize_t a_scale_item
    Py_ssize_t b_scale_item
    char *out


cdef struct Workspace:
    # One thread's share of the scratch buffer.
    char *a
    uint32_t *acc
    uint32_t *rowsum
    uint32_t *b_zero
    uint32_t *bias
    float *b_scale
    float *multiplier
    uint8_t *codes
    uint8_t *columns   # gathered input of a convolution, K x mc
    uint32_t *row_term   # fused: K*za - rowsum
    uint32_t *colsum     # of B that is packed piece by piece
    Py_ssize_t *packed   # fused: 1 + the row block that `a` holds, 0 if none


cdef Py_ssize_t _carve(const Product *p, bint conv, char *at, Workspace *ws) noexcept nogil:
    """Lay a workspace out at ``at``; returns its size. The only place that knows the sizes."""
    cdef char *start = at
    cdef Py_ssize_t cols
    ws.packed = <Py_ssize_t *>at
    at += 64
    ws.a = at
    at += _round_up(p.mc * p.k_padded * p.kernel.a_size, 64)
    if p.fused:
        cols = _round_up(p.cols * 4, 64)
        ws.acc = <uint32_t *>at
        at += 2 * p.mc * p.kernel.nr * 4 if p.slice < p.k_padded else 2 * p.kernel.mr * p.kernel.nr * 4
        ws.rowsum = <uint32_t *>at
        at += _round_up(p.mc * 4, 64)
        ws.row_term = <uint32_t *>at
        at += _round_up(p.mc * 4, 64)
        ws.b_zero = <uint32_t *>at
        at += cols
        ws.bias = <uint32_t *>at   # the terms of the columns
        at += cols
        ws.b_scale = <float *>at
        at += cols
        ws.multiplier = <float *>at
        at += cols
        return _round_up(at - start, 4096) + 64   # threads apart, and not in the same sets of the cache
    ws.acc = <uint32_t *>at
    at += _round_up(p.mc * p.nc * 4, 64)
    ws.rowsum = <uint32_t *>at
    at += _round_up(p.mc * 4, 64)
    ws.b_zero = <uint32_t *>at
    at += _round_up(p.nc * 4, 64)
    ws.bias = <uint32_t *>at
    at += _round_up(p.nc * 4, 64)
    ws.b_scale = <float *>at
    at += _round_up(p.nc * 4, 64)
    ws.multiplier = <float *>at
    at += _round_up(p.nc * 4, 64)
    ws.codes = <uint8_t *>at
    at += _round_up(p.mc * p.nc, 64)
    ws.columns = <uint8_t *>at
    at += _round_up(p.mc * p.k, 64) if conv else 0
    return at - start


cdef void _plan_b(Product *p) noexcept nogil:
    """The layout of packed B: a function of K, N and the kernel only, so that B can be packed ahead."""
    p.k_padded = _round_up(p.k, p.kernel.kr)
    p.n_padded = _round_up(p.n, p.kernel.nr)
    p.kc = _min(_max(1024 // p.kernel.kr * p.kernel.kr, p.kernel.kr), p.kernel.max_kc)
    if p.kernel.tile != NULL:
        p.kc = _max(p.k_padded, p.kernel.kr)   # panels can be cut along K later
    p.nc = _min(_round_up(128, p.kernel.nr), p.n_padded)
    p.b_bytes = _round_up(p.n_padded * p.k_padded * p.kernel.b_size, 64)


cdef void _plan(Product *p, Py_ssize_t items, int n_threads) noexcept nogil:
    """Choose blocks: packed A in about 256 KiB, B tiles in the rest of L2, four tasks per thread if possible."""
    cdef Py_ssize_t mr = p.kernel.mr, nr = p.kernel.nr, wanted = 4 * n_threads if n_threads > 1 else 1, blocks
    _plan_b(p)
    if p.fused:
        p.mc = _max(mr, 786432 // _max(1, p.k_padded * p.kernel.a_size) // mr * mr)
        blocks = _ceil_div(p.m, p.mc)
        if blocks > 1:
            blocks = _round_up(blocks, n_threads)   # blocks of one size: none is left over for one thread
        p.mc = _round_up(_ceil_div(p.m, blocks), mr)
        p.slice = 512 if p.k_padded > 1024 and p.mc > mr else p.k_padded
    else:
        p.mc = _max(16, _min(64, 262144 // _max(1, p.k_padded * p.kernel.a_size)))
        p.mc = _round_up(_min(p.mc, p.m), mr)   # whole panels: the kernel writes all its rows
    p.row_blocks = _ceil_div(p.m, p.mc)
    p.col_ranges = _min(_ceil_div(wanted, _max(1, items * p.row_blocks)), _ceil_div(p.n, 4 * nr))
    p.cols = _round_up(_ceil_div(p.n, p.col_ranges), nr)
    p.col_ranges = _ceil_div(p.n, p.cols)


cdef void _pack_b(const Product *p, Py_ssize_t item, Py_ssize_t col, Py_ssize_t width, const uint8_t *b,
                  Py_ssize_t k_stride, Py_ssize_t col_stride) noexcept nogil:
    """Pack ``width`` columns (whole panels) of one item from ``col`` on; ``b`` is the item's first element."""
    cdef Py_ssize_t k0 = 0, kc, cols = _min(width, p.n - col)
    cdef uint32_t *colsum = p.colsum + item * p.n_padded + col
    memset(colsum, 0, <size_t>_min(width, p.n_padded - col) * 4)
    while k0 < p.k_padded:
        kc = _min(p.kc, p.k_padded - k0)
        p.kernel.pack_b(b + k0 * k_stride + col * col_stride, k_stride, col_stride, cols, _min(kc, p.k - k0), p.b_flip,
                        p.b_packed + item * p.b_bytes + (k0 * p.n_padded + col * kc) * p.kernel.b_size, colsum)
        k0 += kc


cdef void _pack_a(const Product *p, const Workspace *ws, const uint8_t *a, Py_ssize_t row_stride, Py_ssize_t k_stride,
                  Py_ssize_t rows) noexcept nogil:
    cdef Py_ssize_t k0 = 0, kc
    memset(ws.rowsum, 0, <size_t>p.mc * 4)
    while k0 < p.k_padded:
        kc = _min(p.kc, p.k_padded - k0)
        p.kernel.pack_a(a + k0 * k_stride, row_stride, k_stride, rows, _min(kc, p.k - k0), p.a_flip,
                        ws.a + k0 * p.mc * p.kernel.a_size, ws.rowsum)
        k0 += kc


cdef void _multiply(const Product *p, const Workspace *ws, const Sides *s, Py_ssize_t item, Py_ssize_t row,
                    Py_ssize_t rows, Py_ssize_t col_start, Py_ssize_t col_stop, char *out) noexcept nogil:
    """out[row:row+rows, col_start:col_stop] of B item ``item``, from the packed rows in the workspace."""
    cdef const qt_gemm_u8s8 *kernel = p.kernel
    cdef Py_ssize_t k0, kc, i, j, col = col_start, cols
    cdef const char *a
    cdef const char *b
    if kernel.begin != NULL:
        kernel.begin()
    while col < col_stop:
        cols = _min(p.nc, col_stop - col)
        memset(ws.acc, 0, <size_t>(p.mc * p.nc) * 4)
        k0 = 0
        while k0 < p.k_padded:
            kc = _min(p.kc, p.k_padded - k0)
            a = ws.a + k0 * p.mc * kernel.a_size
            b = p.b_packed + item * p.b_bytes + (k0 * p.n_padded + col * kc) * kernel.b_size
            j = 0
            while j < cols:
                i = 0
                while i < rows:
                    kernel.run(kc, a + i * kc * kernel.a_size, b + j * kc * kernel.b_size, ws.acc + i * p.nc + j, p.nc)
                    i += kernel.mr
                j += kernel.nr
            k0 += kc
        _finish(p, ws, s, p.colsum + item * p.n_padded + col, row, rows, col, cols, out)
        col += cols
    if kernel.end != NULL:
        kernel.end()


cdef void _multiply_fused(const Product *p, const Workspace *ws, const Sides *s, Py_ssize_t item, Py_ssize_t row,
                          Py_ssize_t rows, Py_ssize_t col_start, Py_ssize_t col_stop, char *out) noexcept nogil:
    """The same as _multiply, with the epilogue of each tile inside the next. One zero point and scale for all rows."""
    cdef const qt_gemm_u8s8 *kernel = p.kernel
    cdef Py_ssize_t mr = kernel.mr, nr = kernel.nr, panels = _ceil_div(rows, mr)
    cdef Py_ssize_t width = 4 if p.requantize == NULL else 1
    cdef Py_ssize_t k0, kc, i, j, slot, tiles = 0
    cdef qt_tile_end[2] ends
    cdef qt_tile_end *end
    cdef const qt_tile_end *earlier = NULL
    cdef const char *b = p.b_packed + item * p.b_bytes
    cdef uint32_t *acc
    cdef bint sliced = p.slice < p.k_padded
    _terms(p, ws, s, p.colsum + item * p.n_padded, rows, col_start, col_stop, ends)
    if kernel.begin != NULL:
        kernel.begin()
    j = col_start
    while j < col_stop:
        k0 = 0
        while True:
            kc = _min(p.slice, p.k_padded - k0)
            for i in range(panels):
                # two halves in turn, because the end of a tile is outstanding while the next is summed up
                slot = ((j // nr) & 1) * panels + i if sliced else tiles & 1
                acc = ws.acc + slot * mr * nr
                kernel.tile(kc, ws.a + (i * mr * p.k_padded + k0 * mr) * kernel.a_size,
                            b + (j * p.k_padded + k0 * nr) * kernel.b_size,
                            _min(mr, rows - i * mr), k0 == 0, acc, earlier)
                earlier = NULL
                if k0 + kc < p.k_padded:
                    continue
                end = &ends[tiles & 1]
                tiles += 1
                end.acc = acc
                end.rows = _min(mr, rows - i * mr)
                end.cols = _min(nr, col_stop - j)
                end.row_term = ws.row_term + i * mr
                end.col_term = ws.bias + (j - col_start)
                if end.b_zero != NULL:
                    end.b_zero = ws.b_zero + (j - col_start)
                if end.multiplier != NULL:
                    end.multiplier = ws.multiplier + (j - col_start)
                end.out = out + ((row + i * mr) * p.n + j) * width
                earlier = end
            k0 += kc
            if k0 >= p.k_padded:
                break
        j += nr
    if earlier != NULL:
        kernel.finish(earlier)
    if kernel.end != NULL:
        kernel.end()


cdef void _terms(const Product *p, const Workspace *ws, const Sides *s, const uint32_t *colsum, Py_ssize_t rows,
                 Py_ssize_t col_start, Py_ssize_t col_stop, qt_tile_end *ends) noexcept nogil:
    """What the ends of the tiles of a task have in common."""
    cdef const qt_requantize *q = p.requantize
    cdef uint32_t a_zero = <uint32_t>s.a_zero[0] + p.a_flip, b_shift = 128 if p.b_flip else 0, any_b_zero = 0
    cdef Py_ssize_t i, j, cols = col_stop - col_start
    for i in range(rows):
        ws.row_term[i] = <uint32_t>p.k * a_zero - ws.rowsum[i]
    for j in range(cols):
        ws.b_zero[j] = <uint32_t>s.b_zero[(col_start + j) * s.b_zero_step] - b_shift
        any_b_zero |= ws.b_zero[j]
        ws.bias[j] = (<uint32_t>s.bias[col_start + j] if s.bias != NULL else 0) - a_zero * colsum[col_start + j]
    if q != NULL:
        for j in range(cols):
            ws.b_scale[j] = s.b_scale[(col_start + j) * s.b_scale_step]
        qt_multipliers(s.a_scale[0], ws.b_scale, q.y_scale, cols, ws.multiplier)
    for i in range(2):
        ends[i].b_zero = ws.b_zero if any_b_zero else NULL
        ends[i].multiplier = ws.multiplier if q != NULL else NULL
        ends[i].lo = q.lo if q != NULL else 0
        ends[i].hi = q.hi if q != NULL else 0
        ends[i].y_zero = q.y_zero if q != NULL else 0
        ends[i].ld = p.n * (1 if q != NULL else 4)


cdef void _finish(const Product *p, const Workspace *ws, const Sides *s, const uint32_t *colsum, Py_ssize_t row,
                  Py_ssize_t rows, Py_ssize_t col, Py_ssize_t cols, char *out) noexcept nogil:
    """The epilogue of one tile: corrections, bias, requantization, store."""
    cdef const qt_requantize *q = p.requantize
    cdef Py_ssize_t i, j
    cdef uint32_t a_zero, a_shift = p.a_flip, b_shift = 128 if p.b_flip else 0
    cdef float a_scale = 0
    cdef uint32_t *acc
    cdef uint8_t *y
    for j in range(cols):
        ws.b_zero[j] = <uint32_t>s.b_zero[(col + j) * s.b_zero_step] - b_shift
        ws.bias[j] = <uint32_t>s.bias[col + j] if s.bias != NULL else 0
    if q != NULL:
        a_scale = s.a_scale[row * s.a_scale_step]
        for j in range(cols):
            ws.b_scale[j] = s.b_scale[(col + j) * s.b_scale_step]
        qt_multipliers(a_scale, ws.b_scale, q.y_scale, cols, ws.multiplier)
    for i in range(rows):
        acc = ws.acc + i * p.nc
        a_zero = <uint32_t>s.a_zero[(row + i) * s.a_zero_step] + a_shift
        qt_correct_row(acc, cols, <uint32_t>p.k, a_zero, ws.rowsum[i], ws.b_zero, colsum, ws.bias)
        if q != NULL:
            if s.a_scale_step and i:
                a_scale = s.a_scale[(row + i) * s.a_scale_step]
                qt_multipliers(a_scale, ws.b_scale, q.y_scale, cols, ws.multiplier)
            y = ws.codes + i * p.nc if p.transposed else <uint8_t *>out + (row + i) * p.n + col
            qt_requantize_row(q, acc, cols, a_scale, ws.b_scale, ws.multiplier, y)
        elif not p.transposed:
            for j in range(cols):
                (<uint32_t *>out)[(row + i) * p.n + col + j] = acc[j]
    if p.transposed and q != NULL:
        qt_scatter_u8(ws.codes, p.nc, rows, cols, <uint8_t *>out + col * p.m + row, p.m)
    elif p.transposed:
        qt_scatter_u32(ws.acc, p.nc, rows, cols, <uint32_t *>out + col * p.m + row, p.m)


def macs_per_ns():
    """Multiply-adds of the chosen kernel in a nanosecond of one core, roughly: what decides over threads."""
    return (32, 90, 200, 330, 1000)[_gemm.isa]


cdef qt_requantize _requantize(float y_scale, int y_zero, bint y_signed, bint literal) noexcept:
    cdef qt_requantize q
    q.form = QT_FORM_LITERAL if literal else QT_FORM_MULTIPLIER
    q.y_scale = y_scale
    q.y_zero = y_zero
    q.lo = (-128 if y_signed else 0) - y_zero
    q.hi = (127 if y_signed else 255) - y_zero
    return q


cdef class PackedMatrices:
    """Matrices of one shape, packed for one micro-kernel, with the sums of their columns."""
    cdef const qt_gemm_u8s8 *kernel
    cdef Product plan
    cdef Buffer packed
    cdef Buffer sums
    cdef readonly Py_ssize_t items
    cdef readonly bint is_signed

    def __init__(self, const uint8_t[:, :, :] b not None, bint is_signed, int n_threads):
        """Pack b of shape (items, K, N), any strides."""
        self._pack(&b[0, 0, 0] if b.shape[0] and b.shape[1] and b.shape[2] else NULL, b.shape[0], b.shape[1],
                   b.shape[2], b.strides[0], b.strides[1], b.strides[2], is_signed, n_threads)

    cdef int _pack(self, const uint8_t *data, Py_ssize_t items, Py_ssize_t k, Py_ssize_t n, Py_ssize_t item_stride,
                   Py_ssize_t k_stride, Py_ssize_t col_stride, bint is_signed, int n_threads) except -1:
        cdef Product *p = &self.plan
        cdef Py_ssize_t width = 512, col_groups, group   # columns of a task: a multiple of every nr
        memset(p, 0, sizeof(Product))
        p.kernel = self.kernel = _gemm
        p.k, p.n = k, n
        p.b_flip = 0 if is_signed else 0x80
        _plan_b(p)
        self.items, self.is_signed = items, is_signed
        self.packed = Buffer(items * p.b_bytes)
        self.sums = Buffer(items * p.n_padded * 4)
        p.b_packed = self.packed.start
        p.colsum = <uint32_t *>self.sums.start
        col_groups = _ceil_div(n, width)
        n_threads = <int>_min(n_threads, items * col_groups)
        if n_threads <= 1:
            with nogil:
                for group in range(items * col_groups):
                    _pack_b(p, group // col_groups, group % col_groups * width, width,
                            data + group // col_groups * item_stride, k_stride, col_stride)
            return 0
        for group in prange(items * col_groups, nogil=True, schedule="dynamic", chunksize=1, num_threads=n_threads):
            _pack_b(p, group // col_groups, group % col_groups * width, width,
                    data + group // col_groups * item_stride, k_stride, col_stride)
        return 0

    @property
    def k(self):
        return self.plan.k

    @property
    def n(self):
        return self.plan.n

    @property
    def nbytes(self):
        """Bytes held: the packed matrices and the sums."""
        return self.items * (self.plan.b_bytes + self.plan.n_padded * 4)

    @property
    def kernel_name(self):
        return self.kernel.name.decode()

    @property
    def current(self):
        """Whether the kernel that dispatch chooses now is the one that this was packed for."""
        return self.kernel == _gemm


def matmul(
    const uint8_t[:, :, :] a not None,          # IN  (items of a, M, K), any strides
    PackedMatrices b not None,                  # IN  (items of b, K, N)
    const Py_ssize_t[::1] a_item not None,      # IN  (batch,) index into a
    const Py_ssize_t[::1] b_item not None,      # IN  (batch,) index into b
    bint a_signed,
    const int32_t[:, :] a_zero not None,        # IN  (batch, M), a stride of 0 repeats
    const int32_t[:, :] b_zero not None,        # IN  (batch, N)
    int32_t[:, :, ::1] out32,                   # OUT (batch, M, N), or None
    uint8_t[:, :, ::1] out8,                    # OUT (batch, M, N), or None
    const float[:, :] a_scale,                  # IN  (batch, M) with out8
    const float[:, :] b_scale,                  # IN  (batch, N) with out8
    float y_scale,
    int y_zero,
    bint y_signed,
    bint literal,
    int n_threads,
):
    """Equation (3) into ``out32``, or (3) and (4) into ``out8``.

    Shapes are the caller's duty, and that b is current.
    """
    cdef Product p = b.plan
    cdef Batch batch
    cdef qt_requantize q = _requantize(y_scale, y_zero, y_signed, literal)
    cdef bint codes = out8 is not None
    p.m = a.shape[1]
    if a_item.shape[0] == 0 or p.m == 0 or p.n == 0:
        return
    p.a_flip = 0x80 if a_signed else 0
    p.requantize = &q if codes else NULL
    memset(&batch, 0, sizeof(batch))
    batch.size = a_item.shape[0]
    batch.a = &a[0, 0, 0] if p.k else NULL   # without K there is no first element, nor a read
    batch.a_item_step, batch.row_stride, batch.k_stride = a.strides[0], a.strides[1], a.strides[2]
    batch.a_item, batch.b_item = &a_item[0], &b_item[0]
    batch.sides.a_zero, batch.sides.b_zero = &a_zero[0, 0], &b_zero[0, 0]
    batch.sides.a_zero_step, batch.a_zero_item = a_zero.strides[1] // 4, a_zero.strides[0] // 4
    batch.sides.b_zero_step, batch.b_zero_item = b_zero.strides[1] // 4, b_zero.strides[0] // 4
    if codes:
        batch.sides.a_scale, batch.sides.b_scale = &a_scale[0, 0], &b_scale[0, 0]
        batch.sides.a_scale_step, batch.a_scale_item = a_scale.strides[1] // 4, a_scale.strides[0] // 4
        batch.sides.b_scale_step, batch.b_scale_item = b_scale.strides[1] // 4, b_scale.strides[0] // 4
    batch.out = <char *>&out8[0, 0, 0] if codes else <char *>&out32[0, 0, 0]
    _products(&p, &batch, n_threads)


cdef int _products(Product *p, Batch *batch, int n_threads) except -1:
    """The batch, from packed B."""
    cdef Sides *s = &batch.sides
    cdef Py_ssize_t tasks, stride, task, thread
    cdef Workspace probe
    if p.m == 1:
        s.a_zero_step = s.a_scale_step = 0
    p.fused = p.kernel.tile != NULL and s.a_zero_step == 0 and s.a_scale_step == 0
    if p.requantize != NULL:
        p.fused = p.fused and p.requantize.form == QT_FORM_MULTIPLIER
    _plan(p, batch.size, n_threads)
    tasks = batch.size * p.row_blocks * p.col_ranges
    n_threads = <int>_min(n_threads, tasks)
    stride = _carve(p, False, NULL, &probe)
    scratch = Buffer(stride * n_threads)
    cdef char *base = (<Buffer>scratch).start
    for thread in range(n_threads):
        _carve(p, False, base + thread * stride, &probe)
        probe.packed[0] = 0
    if n_threads == 1:
        with nogil:
            for task in range(tasks):
                _matmul_task(p, batch, base, task)
        return 0
    with nogil, parallel(num_threads=n_threads):
        for task in prange(tasks, schedule="dynamic", chunksize=1):
            _matmul_task(p, batch, base + threadid() * stride, task)
    return 0


cdef void _matmul_task(const Product *p, const Batch *batch, char *base, Py_ssize_t task) noexcept nogil:
    cdef Workspace ws
    cdef Sides s = batch.sides
    cdef Py_ssize_t block = task // p.col_ranges, r = block // p.row_blocks
    cdef Py_ssize_t row = block % p.row_blocks * p.mc, rows = _min(p.mc, p.m - row), col = task % p.col_ranges * p.cols
    cdef Py_ssize_t a_item = batch.a_item[r] if batch.a_item != NULL else 0
    cdef Py_ssize_t b_item = batch.b_item[r] if batch.b_item != NULL else 0
    cdef char *out = batch.out + r * p.m * p.n * (1 if p.requantize != NULL else 4)
    _carve(p, False, base, &ws)
    s.a_zero += r * batch.a_zero_item
    s.b_zero += r * batch.b_zero_item
    if p.requantize != NULL:
        s.a_scale += r * batch.a_scale_item
        s.b_scale += r * batch.b_scale_item
    if ws.packed[0] != block + 1:   # a thread that goes on with the same rows has them packed
        _pack_a(p, &ws, batch.a + a_item * batch.a_item_step + row * batch.row_stride, batch.row_stride,
                batch.k_stride, rows)
        ws.packed[0] = block + 1
    if p.fused:
        _multiply_fused(p, &ws, &s, b_item, row, rows, col, _min(col + p.cols, p.n), out)
    else:
        _multiply(p, &ws, &s, b_item, row, rows, col, _min(col + p.cols, p.n), out)


def matmul_2d(
    const uint8_t[:, :] a not None,             # IN  (M, K), any strides
    const uint8_t[:, :] b,                      # IN  (K, N), any strides, or None
    PackedMatrices packed,                      # IN  (1, K, N), current, if b is None
    bint a_signed,
    bint b_signed,
    int a_zero,
    int b_zero,
    const int32_t[::1] b_zeros,                 # IN  (N,), or None: b_zero
    int32_t[:, ::1] out32,                      # OUT (M, N), or None
    uint8_t[:, ::1] out8,                       # OUT (M, N), or None
    float a_scale,
    float b_scale,
    const float[::1] b_scales,                  # IN  (N,), or None: b_scale
    float y_scale,
    int y_zero,
    bint y_signed,
    int n_threads,
):
    """matmul() of two matrices with one zero point and scale of a: few arguments, and B of a few rows is not packed."""
    cdef Product p
    cdef Batch batch
    cdef qt_requantize q = _requantize(y_scale, y_zero, y_signed, False)
    cdef bint codes = out8 is not None, few
    cdef int32_t a_zero32 = a_zero, b_zero32 = b_zero
    memset(&batch, 0, sizeof(batch))
    if a.shape[0] == 0 or (out8.shape[1] if codes else out32.shape[1]) == 0:
        return
    few = packed is None and _gemm.tile != NULL and a.shape[0] <= _gemm.mr
    if packed is None and not few:
        packed = PackedMatrices.__new__(PackedMatrices)
        packed._pack(&b[0, 0] if b.shape[0] else NULL, 1, b.shape[0], b.shape[1], 0, b.strides[0], b.strides[1],
                     b_signed, n_threads)
    if few:
        memset(&p, 0, sizeof(p))
        p.kernel = _gemm
        p.k, p.n = b.shape[0], b.shape[1]
        p.b_flip = 0 if b_signed else 0x80
    else:
        p = packed.plan
    p.m = a.shape[0]
    p.a_flip = 0x80 if a_signed else 0
    p.requantize = &q if codes else NULL
    batch.size = 1
    batch.a = &a[0, 0] if p.k else NULL
    batch.row_stride, batch.k_stride = a.strides[0], a.strides[1]
    batch.sides.a_zero, batch.sides.a_scale = &a_zero32, &a_scale
    batch.sides.b_zero, batch.sides.b_scale = &b_zero32, &b_scale
    if b_zeros is not None:
        batch.sides.b_zero, batch.sides.b_zero_step = &b_zeros[0], 1
    if b_scales is not None:
        batch.sides.b_scale, batch.sides.b_scale_step = &b_scales[0], 1
    batch.out = <char *>&out8[0, 0] if codes else <char *>&out32[0, 0]
    if few:
        _stream(&p, &batch, &b[0, 0] if p.k else NULL, b.strides[0], b.strides[1], n_threads)
    else:
        _products(&p, &batch, n_threads)


# B of a few rows: packing it would write and read again what is used once. Each task takes a range of columns, walks B
# in pieces that fit the first-level cache, packs one, multiplies it with the one panel of A, and adds to sums that fit
# the second level. Row-major B is walked along its rows, 256 of them at a time, for the sake of the TLB.

cdef enum:
    STREAM_COLS = 1024

cdef int _stream(Product *p, const Batch *batch, const uint8_t *b, Py_ssize_t k_stride, Py_ssize_t col_stride,
                 int n_threads) except -1:
    cdef Py_ssize_t tasks, stride, task
    cdef Workspace ws
    _plan_b(p)
    p.fused = True
    p.mc = p.kernel.mr
    p.nc = p.kernel.nr if k_stride == 1 and col_stride != 1 else 4 * p.kernel.nr      # columns and K of a piece
    p.slice = 1024 if k_stride == 1 and col_stride != 1 else 256
    tasks = _max(_ceil_div(p.n, STREAM_COLS), _min(n_threads, _ceil_div(p.n, p.nc)))
    p.cols = _round_up(_ceil_div(p.n, tasks), p.nc)
    tasks = _ceil_div(p.n, p.cols)
    n_threads = <int>_min(n_threads, tasks)
    stride = _carve_stream(p, NULL, &ws)
    scratch = Buffer(stride * n_threads)
    cdef char *base = (<Buffer>scratch).start
    for task in range(n_threads):
        _carve_stream(p, base + task * stride, &ws)
        ws.packed[0] = 0
    if n_threads == 1:
        with nogil:
            for task in range(tasks):
                _stream_task(p, batch, base, b, k_stride, col_stride, task)
        return 0
    with nogil, parallel(num_threads=n_threads):
        for task in prange(tasks, schedule="dynamic", chunksize=1):
            _stream_task(p, batch, base + threadid() * stride, b, k_stride, col_stride, task)
    return 0


cdef Py_ssize_t _carve_stream(const Product *p, char *at, Workspace *ws) noexcept nogil:
    cdef char *start = at
    cdef Py_ssize_t cols = _round_up(p.cols * 4, 64)
    ws.packed = <Py_ssize_t *>at
    at += 64
    ws.a = at
    at += p.mc * p.k_padded
    ws.columns = <uint8_t *>at   # the packed piece of B
    at += p.nc * p.slice
    ws.acc = <uint32_t *>at
    at += p.mc * p.cols * 4
    ws.rowsum = <uint32_t *>at
    at += _round_up(p.mc * 4, 64)
    ws.row_term = <uint32_t *>at
    at += _round_up(p.mc * 4, 64)
    ws.colsum = <uint32_t *>at
    at += cols
    ws.b_zero = <uint32_t *>at
    at += cols
    ws.bias = <uint32_t *>at
    at += cols
    ws.b_scale = <float *>at
    at += cols
    ws.multiplier = <float *>at
    at += cols
    return _round_up(at - start, 4096) + 64


cdef void _stream_task(const Product *p, const Batch *batch, char *base, const uint8_t *b, Py_ssize_t k_stride,
                       Py_ssize_t col_stride, Py_ssize_t task) noexcept nogil:
    cdef const qt_gemm_u8s8 *kernel = p.kernel
    cdef Py_ssize_t mr = kernel.mr, nr = kernel.nr, col = task * p.cols, stop = _min(col + p.cols, p.n)
    cdef Py_ssize_t k0 = 0, kc, padded, j, i, width
    cdef Workspace ws
    cdef qt_tile_end[2] ends
    cdef qt_tile_end *end = &ends[0]
    _carve_stream(p, base, &ws)
    if ws.packed[0] == 0:
        _pack_a(p, &ws, batch.a, batch.row_stride, batch.k_stride, p.m)
        ws.packed[0] = 1
    memset(ws.colsum, 0, <size_t>p.cols * 4)
    if p.k == 0:
        memset(ws.acc, 0, <size_t>(mr * p.cols) * 4)
    if kernel.begin != NULL:
        kernel.begin()
    while k0 < p.k:
        kc = _min(p.slice, p.k - k0)
        padded = _round_up(kc, kernel.kr)
        j = col
        while j < stop:
            width = _min(p.nc, stop - j)
            kernel.pack_b(b + k0 * k_stride + j * col_stride, k_stride, col_stride, width, kc, p.b_flip, ws.columns,
                          ws.colsum + (j - col))
            i = 0
            while i < width:
                kernel.tile(padded, ws.a + k0 * mr, ws.columns + i * padded, p.m, k0 == 0,
                            ws.acc + (j + i - col) * mr, NULL)
                i += nr
            j += width
        k0 += kc
    _terms(p, &ws, &batch.sides, ws.colsum - col, p.m, col, stop, ends)
    end.row_term = ws.row_term
    end.rows = p.m
    j = 0
    while j < stop - col:
        end.acc = ws.acc + j * mr
        end.cols = _min(nr, stop - col - j)
        end.col_term = ws.bias + j
        if end.b_zero != NULL:
            end.b_zero = ws.b_zero + j
        if end.multiplier != NULL:
            end.multiplier = ws.multiplier + j
        end.out = batch.out + (col + j) * (1 if p.requantize != NULL else 4)
        kernel.finish(end)
        j += nr
    if kernel.end != NULL:
        kernel.end()


def conv(
    const uint8_t[:, :, :, :, ::1] x not None,  # IN  (batch, C, D, H, W)
    const uint8_t[:, :, :, :, ::1] w not None,  # IN  (channels out, C / groups, kD, kH, kW)
    Py_ssize_t groups,
    tuple strides,
    tuple pads_begin,
    tuple dilations,
    bint x_signed,
    bint w_signed,
    int x_zero,
    const int32_t[::1] w_zero not None,         # IN  (channels out,)
    const int32_t[::1] bias,                    # IN  (channels out,) or None
    int32_t[:, :, :, :, ::1] out32,             # OUT (batch, channels out, oD, oH, oW), or None
    uint8_t[:, :, :, :, ::1] out8,              # OUT the same, or None
    const float[::1] x_scale,                   # IN  (1,) with out8
    const float[::1] w_scale,                   # IN  (channels out,) with out8
    float y_scale,
    int y_zero,
    bint y_signed,
    bint literal,
    int n_threads,
):
    """ConvInteger into ``out32``, or QLinearConv into ``out8``. Shapes are the caller's duty."""
    cdef Product p
    cdef qt_conv g
    cdef qt_requantize q = _requantize(y_scale, y_zero, y_signed, literal)
    cdef bint codes = out8 is not None
    cdef Py_ssize_t batch = x.shape[0], channels = w.shape[0], tasks, col_groups, stride, task, group, axis
    cdef Py_ssize_t item
    cdef int32_t x_zero32 = x_zero
    cdef Workspace probe
    cdef Sides s
    cdef char *base
    cdef int x_sign = 128 if x_signed else 0, w_sign = 128 if w_signed else 0
    memset(&p, 0, sizeof(p))
    for axis in range(3):
        g.size[axis] = x.shape[2 + axis]
        g.kernel[axis] = w.shape[2 + axis]
        g.out[axis] = out8.shape[2 + axis] if codes else out32.shape[2 + axis]
        g.stride[axis] = strides[axis]
        g.pad[axis] = pads_begin[axis]
        g.dilation[axis] = dilations[axis]
    g.channels = w.shape[1]
    g.outside = <uint8_t>(x_zero & 0xFF)
    p.m = g.out[0] * g.out[1] * g.out[2]
    p.n = channels // groups
    p.k = g.channels * g.kernel[0] * g.kernel[1] * g.kernel[2]
    if batch == 0 or channels == 0 or p.m == 0:
        return
    cdef const uint8_t *x_data = &x[0, 0, 0, 0, 0] if x.size else NULL
    cdef const uint8_t *w_data = &w[0, 0, 0, 0, 0] if w.size else NULL
    cdef Py_ssize_t x_item = g.channels * g.size[0] * g.size[1] * g.size[2], width = 1 if codes else 4
    cdef char *out = <char *>&out8[0, 0, 0, 0, 0] if codes else <char *>&out32[0, 0, 0, 0, 0]
    p.kernel = _gemm
    p.a_flip = 0x80 if x_signed else 0
    p.b_flip = 0 if w_signed else 0x80
    p.transposed = True
    p.requantize = &q if codes else NULL
    s.a_zero = &x_zero32
    s.a_zero_step = 0
    s.b_zero = &w_zero[0]
    s.b_zero_step = 1
    s.bias = &bias[0] if bias is not None else NULL
    s.a_scale = &x_scale[0] if codes else NULL
    s.a_scale_step = 0
    s.b_scale = &w_scale[0] if codes else NULL
    s.b_scale_step = 1
    if g.channels == 1:
        n_threads = <int>_min(n_threads, batch * channels)
        stride = 3 * _round_up(g.out[2] * 4, 64)
        scratch = Buffer(stride * n_threads)
        base = (<Buffer>scratch).start
        with nogil, parallel(num_threads=n_threads):
            for task in prange(batch * channels, schedule="dynamic", chunksize=1):
                _depthwise_task(&p, &g, &s, base + threadid() * stride, task % channels,
                                x_data + (task // channels * groups + task % channels // p.n) * x_item, w_data,
                                x_sign, w_sign, out + task * p.m * width)
        return
    _plan(&p, batch * groups, n_threads)
    packed = Buffer(groups * p.b_bytes)
    sums = Buffer(groups * p.n_padded * 4)
    p.b_packed = (<Buffer>packed).start
    p.colsum = <uint32_t *>(<Buffer>sums).start
    tasks = batch * groups * p.row_blocks * p.col_ranges
    n_threads = <int>_min(n_threads, tasks)
    stride = _carve(&p, True, NULL, &probe)
    scratch = Buffer(stride * n_threads)
    base = (<Buffer>scratch).start
    col_groups = _ceil_div(p.n, p.nc)
    for group in prange(groups * col_groups, nogil=True, schedule="dynamic", chunksize=1, num_threads=n_threads):
        _pack_b(&p, group // col_groups, group % col_groups * p.nc, p.nc, w_data + group // col_groups * p.n * p.k, 1,
                p.k)
    with nogil, parallel(num_threads=n_threads):
        for task in prange(tasks, schedule="dynamic", chunksize=1):
            item = task // p.col_ranges // p.row_blocks
            _conv_task(&p, &g, &s, base + threadid() * stride, item % groups, task // p.col_ranges % p.row_blocks,
                       task % p.col_ranges, x_data + item * x_item, out + item * p.n * p.m * width)


cdef void _conv_task(const Product *p, const qt_conv *g, const Sides *all_groups, char *base, Py_ssize_t group,
                     Py_ssize_t row_block, Py_ssize_t col_range, const uint8_t *x, char *out) noexcept nogil:
    """One block of output positions and a range of channels of one group of one image."""
    cdef Workspace ws
    cdef Sides s = all_groups[0]
    cdef Py_ssize_t row = row_block * p.mc, rows = _min(p.mc, p.m - row), col = col_range * p.cols
    _carve(p, True, base, &ws)
    s.b_zero += group * p.n
    if s.bias != NULL:
        s.bias += group * p.n
    if s.b_scale != NULL:
        s.b_scale += group * p.n
    qt_im2col(g, x, row, rows, ws.columns, p.mc)
    _pack_a(p, &ws, ws.columns, 1, p.mc, rows)
    _multiply(p, &ws, &s, group, row, rows, col, _min(col + p.cols, p.n), out)


cdef void _depthwise_task(const Product *p, const qt_conv *g, const Sides *s, char *base, Py_ssize_t channel,
                          const uint8_t *x, const uint8_t *w, int x_sign, int w_sign, char *out) noexcept nogil:
    """One output channel of one image, from its one input channel."""
    cdef Py_ssize_t part = _round_up(g.out[2] * 4, 64), line, j
    cdef uint32_t *acc = <uint32_t *>base
    cdef float *b_scale = <float *>(base + part)
    cdef float *multiplier = <float *>(base + 2 * part)
    cdef uint32_t bias = <uint32_t>s.bias[channel] if s.bias != NULL else 0
    if p.requantize != NULL:
        for j in range(g.out[2]):
            b_scale[j] = s.b_scale[channel]
        qt_multipliers(s.a_scale[0], b_scale, p.requantize.y_scale, g.out[2], multiplier)
    for line in range(g.out[0] * g.out[1]):
        if p.requantize == NULL:
            acc = <uint32_t *>out + line * g.out[2]
        qt_depthwise_line(g, x, w + channel * p.k, x_sign, w_sign, s.a_zero[0], s.b_zero[channel], bias,
                          line // g.out[1], line % g.out[1], acc)
        if p.requantize != NULL:
            qt_requantize_row(p.requantize, acc, g.out[2], s.a_scale[0], b_scale, multiplier,
                              <uint8_t *>out + line * g.out[2])


def dynamic_quantize(
    const float[::1] x not None,   # IN  any shape, flattened
    uint8_t[::1] y not None,       # OUT the same length
    int n_threads,
):
    """DynamicQuantizeLinear; returns (scale, zero point). The range contains 0, and a range of 0 has scale 1."""
    cdef Py_ssize_t n = x.shape[0], share, t
    cdef float lo = 0, hi = 0, scale
    cdef int32_t zero
    cdef qt_integer type
    type.qmin, type.qmax, type.mask = 0, 255, 255
    n_threads = <int>_max(1, _min(n_threads, n // 64))
    share = _round_up(_ceil_div(n, n_threads), 64)
    ranges = Buffer(n_threads * 64)   # a cache line per thread
    cdef char *base = (<Buffer>ranges).start
    cdef const float *x_data = &x[0] if n else NULL
    cdef uint8_t *y_data = &y[0] if n else NULL
    memset(base, 0, <size_t>n_threads * 64)
    for t in prange(n_threads, nogil=True, schedule="static", num_threads=n_threads):
        _quantize.range(x_data + _min(t * share, n), _max(0, _min(share, n - t * share)), <float *>(base + t * 64),
                        <float *>(base + t * 64 + 4))
    for t in range(n_threads):
        lo = min(lo, (<float *>(base + t * 64))[0])
        hi = max(hi, (<float *>(base + t * 64 + 4))[0])
    scale = (hi - lo) / <float>255
    if scale == 0:
        scale = 1
    zero = qt_rint_within(-lo / scale, 0, 255)
    for t in prange(n_threads, nogil=True, schedule="static", num_threads=n_threads):
        _quantize.codes8(x_data + _min(t * share, n), &scale, &zero, share, FLOAT32, type,
                         _max(0, _min(share, n - t * share)), y_data + _min(t * share, n))
    return scale, zero


# ------------------------------------------------------------------------------------------------------------ ceilings
#
# What the units of this processor do at most, for the benchmark. One thread; the cap of set_isa() does not matter here.

cdef extern from "_kernels/amx_permission.h" nogil:
    int qt_request_amx()


cdef extern from "_kernels/peak.h" nogil:
    ctypedef struct qt_peak:
        const char *name
        qt_isa isa
        int64_t operations
        void (*run)(Py_ssize_t) noexcept nogil
    const qt_peak *QT_PEAKS
    const int QT_PEAK_COUNT


def peak(str name, double seconds):
    """Operations per second of the dot-product instruction `name` on registers, measured for about `seconds`.

    None if this processor, or its operating system, does not have the instruction.
    """
    from time import perf_counter
    cdef const qt_peak *row
    cdef uint32_t needed
    cdef int i
    cdef Py_ssize_t turns = 1000
    cdef double start, spent, total = 0, done = 0
    for i in range(QT_PEAK_COUNT):
        row = &QT_PEAKS[i]
        if row.name.decode() != name:
            continue
        needed = QT_ISAS[<int>row.isa].mask
        if _features & needed != needed or (<int>row.isa == QT_ISA_COUNT - 1 and not qt_request_amx()):
            return None
        with nogil:
            row.run(turns)   # the first wide instructions run while the core still wakes their units
        while total < seconds:
            start = perf_counter()
            with nogil:
                row.run(turns)
            spent = perf_counter() - start
            if spent < 1e-4:   # too short for the clock
                turns *= 4
                continue
            total += spent
            done += <double>turns * <double>row.operations
        return done / total
    return None
