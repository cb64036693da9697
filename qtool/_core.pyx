# cython: language_level=3
"""The compiled core of qtool: loops over typed memoryviews, nothing else."""

# ---------------------------------------------------------------------------------------------------- threads and ISA

import os

from numpy import dtype as _dtype, empty as _empty, generic as _generic, ndarray as _ndarray

cimport cython
from cpython.buffer cimport (
    Py_buffer, PyBUF_SIMPLE, PyBUF_STRIDED_RO, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
)
from cython.parallel cimport parallel, prange, threadid
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uintptr_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memset


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
    ctypedef struct qt_tile:
        Py_ssize_t kc
        const void *a
        const void *b
        Py_ssize_t a_ld
        Py_ssize_t rows
        bint first
        bint a_passes
        uint32_t *acc
        const uint32_t *start
        uint32_t *out
        Py_ssize_t out_ld
        const qt_tile_end *earlier
        const qt_tile_end *own
        const char *ahead
        Py_ssize_t ahead_bytes

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
        void (*tile)(const qt_tile *) noexcept nogil
        void (*finish)(const qt_tile_end *) noexcept nogil
        bint in_place
        bint stores
        bint ends
        void (*stream)(const uint8_t *, const uint8_t *, Py_ssize_t, Py_ssize_t, Py_ssize_t, uint8_t, bint,
                       uint32_t *, uint32_t *) noexcept nogil
        Py_ssize_t stream_rows
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
        int32_t (*tally)(const float *, Py_ssize_t, int, int32_t, int32_t *, int64_t *, int32_t *, int32_t *,
                         const int32_t *, Py_ssize_t, unsigned char *) noexcept nogil
        void (*empty)(unsigned char *, Py_ssize_t, Py_ssize_t, int64_t *) noexcept nogil
        void (*absmax_columns)(const float *, Py_ssize_t, int32_t *) noexcept nogil
        int32_t (*absmax_row)(const float *, Py_ssize_t, int32_t) noexcept nogil
        void (*abs_sum_columns)(const float *, Py_ssize_t, double *) noexcept nogil
        void (*abs_sum_row)(const float *, Py_ssize_t, double *) noexcept nogil
    enum:
        QT_TALLY_TILE
        QT_TALLY_FULL
        QT_TALLY_BITS
        QT_TALLY_BIN
    unsigned char *qt_lanes_of_thread()
    const qt_statistics **QT_STATISTICS
    const int QT_STATISTICS_COUNT
    const qt_statistics *qt_choose_statistics(uint32_t, qt_isa)


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
    ctypedef struct qt_band:
        Py_ssize_t slice
        Py_ssize_t line
        Py_ssize_t column
        Py_ssize_t lines
        Py_ssize_t columns
        Py_ssize_t phases
        Py_ssize_t rows
        Py_ssize_t pitch
        Py_ssize_t slice_bytes
        Py_ssize_t bytes
    void qt_band_layout(const qt_conv *, qt_band *)
    Py_ssize_t qt_band_offset(const qt_conv *, const qt_band *, Py_ssize_t, Py_ssize_t, Py_ssize_t)
    void qt_band_fill(const qt_conv *, const qt_band *, const uint8_t *, uint8_t *)
    void qt_copy_lines(const uint8_t *, Py_ssize_t, uint8_t *, Py_ssize_t, Py_ssize_t, Py_ssize_t)


cdef extern from "_kernels/conv_ends.h" nogil:
    ctypedef struct qt_segment:
        Py_ssize_t from_ "from"
        Py_ssize_t length
        Py_ssize_t to
    ctypedef struct qt_channels:
        const qt_requantize *q
        float x_scale
        const float *w_scale
        const float *multiplier
        const uint32_t *add
    ctypedef struct qt_conv_ends:
        const char *name
        qt_isa isa
        void (*pack_runs)(const uint8_t *, const Py_ssize_t *, Py_ssize_t, Py_ssize_t, uint8_t, void *,
                          uint32_t *) noexcept nogil
        void (*finish)(const qt_channels *, Py_ssize_t, const uint32_t *, Py_ssize_t, const uint32_t *,
                       const qt_segment *, Py_ssize_t, void *, Py_ssize_t) noexcept nogil
    const qt_conv_ends **QT_CONV_ENDS
    const int QT_CONV_ENDS_COUNT
    const qt_conv_ends *qt_choose_conv_ends(uint32_t, qt_isa)
    bint qt_packs_runs(const qt_conv_ends *, const qt_gemm_u8s8 *)


cdef extern from "_kernels/depthwise.h" nogil:
    const int QT_DEPTHWISE_STEP
    ctypedef struct qt_depthwise_line:
        const void *copy
        const Py_ssize_t *line
        Py_ssize_t lines
        Py_ssize_t taps
        Py_ssize_t stride
        Py_ssize_t dilation
        Py_ssize_t n
        const uint32_t *weights
        const uint32_t *ones
        uint32_t init
        uint32_t w_zero
        const qt_requantize *q
        float x_scale
        float w_scale
        float multiplier
        uint32_t *acc
        uint8_t *codes
    ctypedef struct qt_depthwise:
        const char *name
        qt_isa isa
        int kr
        void (*run)(const qt_depthwise_line *) noexcept nogil
    uint32_t qt_depthwise_weights(const uint8_t *, Py_ssize_t, Py_ssize_t, int, int, int, int32_t, int32_t, uint32_t,
                                  uint32_t *, uint32_t *)
    void qt_depthwise_ones(Py_ssize_t, uint32_t *)
    bint qt_depthwise_fill(const qt_depthwise *, const qt_conv *, const qt_band *, const uint8_t *, int, uint8_t *)
    void qt_depthwise_flip(uint8_t *, Py_ssize_t)
    void qt_depthwise_widen(const uint8_t *, Py_ssize_t, int, int32_t, int16_t *)
    const qt_depthwise **QT_DEPTHWISE
    const int QT_DEPTHWISE_COUNT
    const qt_depthwise *qt_choose_depthwise(uint32_t, qt_isa)
    const qt_depthwise *qt_fit_depthwise(const qt_depthwise *, Py_ssize_t, Py_ssize_t, Py_ssize_t)


cdef extern from "_kernels/saturating.h" nogil:
    enum:
        QT_SATURATING_COLUMNS
    ctypedef struct qt_saturating:
        const char *name
        qt_isa isa
        void (*run)(const uint8_t *, Py_ssize_t, Py_ssize_t, Py_ssize_t, const char *, const uint8_t *, int32_t *,
                    Py_ssize_t, Py_ssize_t, int64_t *) noexcept nogil
    void qt_saturating_pack(const char *, Py_ssize_t, Py_ssize_t, Py_ssize_t, char *, uint8_t *)
    const qt_saturating **QT_SATURATING
    const int QT_SATURATING_COUNT
    const qt_saturating *qt_choose_saturating(uint32_t, qt_isa)


cdef uint32_t _features = qt_detect_cpu()
cdef str _cap = "auto"
cdef str _amx = "absent"               # or not asked, granted, refused
cdef const qt_gemm_u8s8 *_gemm = NULL  # never NULL after import, nor are the others
cdef const qt_quantize *_quantize = NULL
cdef const qt_dequantize *_dequantize = NULL
cdef const qt_statistics *_statistics = NULL
cdef const qt_conv_ends *_conv_ends = NULL
cdef const qt_depthwise *_depthwise = NULL
cdef const qt_saturating *_saturating = NULL


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
    conv_ends = tuple([_row(QT_CONV_ENDS[i].name, QT_CONV_ENDS[i].isa) for i in range(QT_CONV_ENDS_COUNT)])
    depthwise = tuple([_row(QT_DEPTHWISE[i].name, QT_DEPTHWISE[i].isa) for i in range(QT_DEPTHWISE_COUNT)])
    saturating = tuple([_row(QT_SATURATING[i].name, QT_SATURATING[i].isa) for i in range(QT_SATURATING_COUNT)])
    families = (
        ("gemm_u8s8", _row(_gemm.name, _gemm.isa), gemm),
        ("quantize", _row(_quantize.name, _quantize.isa), quantize),
        ("dequantize", _row(_dequantize.name, _dequantize.isa), dequantize),
        ("statistics", _row(_statistics.name, _statistics.isa), statistics),
        ("conv_ends", _row(_conv_ends.name, _conv_ends.isa), conv_ends),
        ("depthwise", _row(_depthwise.name, _depthwise.isa), depthwise),
        ("saturating", _row(_saturating.name, _saturating.isa), saturating),
    )
    return features, supported_isas(), _cap, _amx, families


cdef tuple _row(const char *name, qt_isa isa):
    return name.decode(), QT_ISAS[isa].name.decode()


cdef void _choose(uint32_t features, qt_isa cap) noexcept:
    """The pointer of every family."""
    global _gemm, _quantize, _dequantize, _statistics, _conv_ends, _depthwise, _saturating
    _gemm = qt_choose_gemm_u8s8(features, cap)
    _quantize = qt_choose_quantize(features, cap)
    _dequantize = qt_choose_dequantize(features, cap)
    _statistics = qt_choose_statistics(features, cap)
    _conv_ends = qt_choose_conv_ends(features, cap)
    _depthwise = qt_choose_depthwise(features, cap)
    _saturating = qt_choose_saturating(features, cap)


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
    void *qt_allocate(size_t, size_t)


cdef enum:
    KEPT_BUFFERS = 8
    KEPT_BYTES = 67108864   # 64 MiB: what a process holds on to between calls
    HUGE_SCRATCH = 524288   # from here on memory of a call is on huge pages
    HUGE_PACKED = 1048576   # and packed operands, of which there may be many

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

    def __cinit__(self, Py_ssize_t size, Py_ssize_t huge=HUGE_SCRATCH):
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
            self.memory, self.size = qt_allocate(<size_t>size, <size_t>huge), size
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
    RUN = 262144           # elements that a kernel quantizes in one call
    PACK_TASK = 8192       # groups of codes that fill whole bytes
    PACK_TILE = 4096       # codes of scratch on the stack of a task that packs them

cdef struct Layout:
    # The scale of column c of row r has the index ((r / n_mid) * k0 + (r % n_mid) / b_mid) * k1 + c / b_col.
    Py_ssize_t cols, n_mid, b_mid, k0, k1, b_col


@cython.freelist(8)
cdef class Bytes:
    """The memory of a C-contiguous array, whatever its element type and rank.

    A typed memoryview would have to be taken of a flat view as bytes, since ml_dtypes have no format; and to check the
    format touches more memory than the rest of a call. After a large call, all of that is out of the cache.
    """
    cdef Py_buffer view

    def __cinit__(self, array, bint writable=False):
        PyObject_GetBuffer(array, &self.view, PyBUF_WRITABLE if writable else PyBUF_SIMPLE)

    def __dealloc__(self):
        PyBuffer_Release(&self.view)


def overlap(a, b):
    """Whether two C-contiguous arrays share a byte."""
    cdef Bytes one = Bytes(a), other = Bytes(b)
    cdef uintptr_t start = <uintptr_t>one.view.buf, other_start = <uintptr_t>other.view.buf
    return start < other_start + <size_t>other.view.len and other_start < start + <size_t>one.view.len


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


# float32 -> codes

cdef struct Quantization:
    const void* x
    int source, precision
    Layout layout
    const float* scale
    int bits
    bint packed
    qt_integer type                       # integers, with
    const int32_t* zero
    const qt_small_float* form            # or small floats (NULL: integers), with
    uint32_t overflow
    const float* offset
    char* y


cdef void _quantize_range(const Quantization* q, Py_ssize_t start, Py_ssize_t stop, char* y) noexcept nogil:
    """y[0..stop - start) = the codes of these elements."""
    cdef float tile[TILE]
    cdef Py_ssize_t n, k = 0, block = 0
    cdef Py_ssize_t longest = RUN if q.source == FLOAT32 and q.precision == FLOAT32 else TILE
    cdef const float* x
    while start < stop:
        n = _run(&q.layout, start, stop, longest, &k, &block)
        x = _rounded(q.x, q.source, q.precision, start, n, tile)
        if q.form != NULL:
            _quantize.floats(x, q.scale + k, q.offset + k, block, q.precision, q.form, q.overflow, n, <uint8_t*>y)
        elif q.bits <= 8:
            _quantize.codes8(x, q.scale + k, q.zero + k, block, q.precision, q.type, n, <uint8_t*>y)
        else:
            _quantize.codes16(x, q.scale + k, q.zero + k, block, q.precision, q.type, n, <uint16_t*>y)
        start += n
        y += n if q.bits <= 8 else 2 * n


cdef void _quantize_task(const Quantization* q, Py_ssize_t start, Py_ssize_t stop) noexcept nogil:
    """The codes of these elements, where they belong in y; a packed task begins with a whole byte."""
    cdef uint8_t codes[PACK_TILE]
    cdef Py_ssize_t n
    if not q.packed:
        _quantize_range(q, start, stop, q.y + (start if q.bits <= 8 else 2 * start))
        return
    while start < stop:
        n = _smaller(PACK_TILE, stop - start)
        _quantize_range(q, start, start + n, <char*>codes)        # by way of a tile that the first cache holds
        _pack_codes(codes, q.bits, n, <uint8_t*>q.y + start * q.bits // 8)
        start += n


cdef void _quantize_all(const Quantization* q, Py_ssize_t size, int n_threads) noexcept:
    cdef Py_ssize_t t
    if n_threads == 1:                                            # no parallel region for a short call to enter
        with nogil:
            _quantize_task(q, 0, size)
        return
    for t in prange((size + TASK - 1) // TASK, nogil=True, schedule="static", num_threads=n_threads):
        _quantize_task(q, t * TASK, _smaller((t + 1) * TASK, size))


cdef void _zero_points(const void* codes, int bits, bint signed_, Py_ssize_t n, int32_t* z) noexcept nogil:
    """z[n] = the integers that codes stand for, whatever the bits above them are; without codes, zeros."""
    cdef int shift = 32 - bits
    cdef uint32_t u
    cdef Py_ssize_t i
    for i in range(n):
        u = 0
        if codes != NULL:
            u = (<const uint8_t*>codes)[i] if bits <= 8 else (<const uint16_t*>codes)[i]
        u <<= shift
        z[i] = <int32_t>u >> shift if signed_ else <int32_t>(u >> shift)


cdef class Quantizer:
    """What calls of `quantize_integer` or `quantize_float` have in common: all but arrays.

    x has `size` elements of type `source`. The results have `bits` bits; they are integers from `first` to `last`, or
    small floats if there is a `format`: (mantissa, bias, max_code, overflow, nan, signed_nan, negative_zero,
    sign_shift) of dtypes.FloatFormat.

    A call takes these numbers from one object, not from fifteen: after a large call all of them are out of the cache.
    """
    cdef Quantization q
    cdef qt_small_float form
    cdef Py_ssize_t size

    def __init__(self, Py_ssize_t size, int source, int precision, tuple layout, int bits, int first, int last, format):
        self.size = size
        self.q.source, self.q.precision, self.q.layout, self.q.bits = source, precision, _layout(layout), bits
        self.q.type.qmin, self.q.type.qmax, self.q.type.mask = first, last, (1 << bits) - 1
        if format is not None:
            self.form = _format(format)


def quantize_integer(Quantizer how not None, x, scale, zero_point, bint packed, y, int n_threads):
    """y[i] = saturate(rint(x[i] / s) + z): the low bits of an item each, or a dense stream if `packed`.

    scale, float32, and zero_point, codes of the type of the result (None: zeros), have one size and are indexed by the
    layout. Arrays are C-contiguous and aligned.
    """
    cdef Bytes elements = Bytes(x), scales = Bytes(scale), result = Bytes(y, True), codes
    cdef Py_ssize_t n_scales = scales.view.len // <Py_ssize_t>sizeof(float)
    cdef const void* given = NULL
    cdef int32_t single
    cdef int32_t* zeros = &single
    cdef Buffer memory
    cdef Quantization q = how.q
    if how.size == 0:
        return
    if zero_point is not None:
        codes = Bytes(zero_point)
        given = codes.view.buf
    if n_scales > 1:
        memory = Buffer(n_scales * <Py_ssize_t>sizeof(int32_t))
        zeros = <int32_t*>memory.start
    _zero_points(given, q.bits, q.type.qmin < 0, n_scales, zeros)
    q.x, q.scale, q.zero, q.y = elements.view.buf, <const float*>scales.view.buf, zeros, <char*>result.view.buf
    q.packed, q.form, q.offset = packed and q.bits < 8, NULL, NULL
    _quantize_all(&q, how.size, n_threads)


def quantize_float(Quantizer how not None, x, scale, offset, bint saturate, bint packed, y, int n_threads):
    """y[i] = code of the small float nearest to x[i] / s + offset, ties to even; an offset of -0 adds nothing.

    Like `quantize_integer`; offset is float32.
    """
    cdef Bytes elements = Bytes(x), scales = Bytes(scale), offsets = Bytes(offset), result = Bytes(y, True)
    cdef Quantization q = how.q
    if how.size == 0:
        return
    q.x, q.scale, q.y = elements.view.buf, <const float*>scales.view.buf, <char*>result.view.buf
    q.packed, q.form = packed and q.bits < 8, &how.form
    q.overflow = how.form.max_code if saturate else how.form.overflow
    q.zero, q.offset = NULL, <const float*>offsets.view.buf
    _quantize_all(&q, how.size, n_threads)


# codes -> float32, float16, bfloat16

cdef struct Dequantization:
    const void* x
    int source
    const float* table
    const float* scale
    const float* zero
    Layout layout
    int result                            # FLOAT32, FLOAT16 or BFLOAT16
    bint stream
    void* y


cdef void _dequantize_task(const Dequantization* q, Py_ssize_t start, Py_ssize_t stop) noexcept nogil:
    cdef Py_ssize_t n, k = 0, block = 0
    while start < stop:
        n = _run(&q.layout, start, stop, TASK, &k, &block)
        _dequantize.singles(q.x, q.source, q.table, q.scale + k, q.zero + k, block, q.stream, start, n,
                            <float*>q.y + start)
        start += n


cdef void _dequantize_half_task(const Dequantization* q, Py_ssize_t start, Py_ssize_t stop) noexcept nogil:
    cdef float tile[TILE]
    cdef float ones[TILE]
    cdef Py_ssize_t n, i, k = 0, block = 0
    for i in range(TILE):
        ones[i] = 1.0
    while start < stop:
        n = _run(&q.layout, start, stop, TILE, &k, &block)
        # The difference alone, then a product that is rounded once.
        _dequantize.singles(q.x, q.source, q.table, ones, q.zero + k, block, False, start, n, tile)
        _dequantize.halves(tile, q.scale + k, block, q.result == BFLOAT16, n, <uint16_t*>q.y + start)
        start += n


def dequantize(
    x, Py_ssize_t size, int source, const float[::1] table, scale, zero_point, tuple layout, int result, bint stream,
    y, int n_threads,
):
    """y[i] = (x[i] - z) * s, rounded once to the float type `result`.

    `table` (256 values) decodes one-byte codes where source is TABLE or TABLE4. scale, float32, and zero_point, codes
    like x (None: zeros), have one size and are indexed by `layout`. `stream` lets float32 stores pass the cache by: for
    results that the cache would not hold anyway. Arrays are C-contiguous and aligned.
    """
    cdef Bytes elements = Bytes(x), scales = Bytes(scale), made = Bytes(y, True), codes
    cdef Py_ssize_t n_scales = scales.view.len // <Py_ssize_t>sizeof(float), t
    cdef float single = 0.0, one = 1.0, none = 0.0
    cdef float* zeros = &single
    cdef Buffer memory
    cdef Dequantization q
    if size == 0:
        return
    if n_scales > 1:
        memory = Buffer(n_scales * <Py_ssize_t>sizeof(float))
        zeros = <float*>memory.start
    if zero_point is None:
        memset(zeros, 0, <size_t>(n_scales * <Py_ssize_t>sizeof(float)))
    else:
        codes = Bytes(zero_point)
        _dequantize.singles(codes.view.buf, source, &table[0], &one, &none, n_scales, False, 0, n_scales, zeros)
    q.x, q.source, q.table, q.layout = elements.view.buf, source, &table[0], _layout(layout)
    q.scale, q.zero, q.result, q.stream, q.y = <const float*>scales.view.buf, zeros, result, stream, made.view.buf
    if n_threads == 1:                                            # no parallel region for a short call to enter
        with nogil:
            if result == FLOAT32:
                _dequantize_task(&q, 0, size)
            else:
                _dequantize_half_task(&q, 0, size)
        return
    for t in prange((size + TASK - 1) // TASK, nogil=True, schedule="static", num_threads=n_threads):
        if result == FLOAT32:
            _dequantize_task(&q, t * TASK, _smaller((t + 1) * TASK, size))
        else:
            _dequantize_half_task(&q, t * TASK, _smaller((t + 1) * TASK, size))


# Packing: low bits first. A group is the fewest codes that fill whole bytes; the codes after the last whole group are
# written, or read, bit by bit.

cdef void _pack_codes(const uint8_t* codes, int bits, Py_ssize_t n, uint8_t* raw) noexcept nogil:
    """n codes to ceil(n * bits / 8) bytes."""
    cdef Py_ssize_t group = 4 if bits == 6 else 8 // bits, whole = n // group, i
    cdef uint32_t rest = 0
    _quantize.pack(codes, bits, whole, raw)
    if whole * group == n:
        return
    for i in range(whole * group, n):
        rest |= <uint32_t>(codes[i] & ((1 << bits) - 1)) << <int>((i - whole * group) * bits)
    for i in range(whole * group * bits // 8, (n * bits + 7) // 8):
        raw[i] = <uint8_t>rest
        rest >>= 8


def pack(const uint8_t[::1] codes, int bits, uint8_t[::1] raw, int n_threads):
    """Codes of 2, 4 or 6 bits (the low bits of each byte) to a dense stream; raw.size = ceil(codes.size * bits / 8)."""
    cdef Py_ssize_t size = codes.shape[0], t
    if size == 0:
        return
    for t in prange((size + TASK - 1) // TASK, nogil=True, schedule="static", num_threads=n_threads):
        _pack_codes(&codes[0] + t * TASK, bits, _smaller(TASK, size - t * TASK), &raw[0] + t * TASK * bits // 8)


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


# A histogram that is being filled. The bins of a tile are found while those of the tile before are counted, into 16-bit
# lanes (_kernels/tally.h), which are emptied into int64 counts. That a value lies outside the range, or is none, shows
# only when the bins of its tile are there; so they are found anew before they become known.

cdef struct Filling:
    const qt_statistics* kernel
    int64_t* counts            # NULL if there are none
    int bits
    int exponent
    unsigned char* lanes
    Py_ssize_t pending         # elements counted into them
    int32_t* bins              # of the tile before
    Py_ssize_t known           # how many
    int32_t* spare             # as much memory as bins has
    int64_t outside            # finite values that no bin holds
    MinMaxPart whole           # what min_max says of all elements so far


cdef void _begin_filling(
    Filling* h, const qt_statistics* kernel, int64_t* counts, int bits, int exponent, unsigned char* lanes,
    int32_t* memory,
) noexcept nogil:
    """lanes is zero, and NULL for those of the thread; memory is that of two tiles."""
    h.kernel, h.counts, h.bits, h.exponent, h.pending, h.known, h.outside = kernel, counts, bits, exponent, 0, 0, 0
    h.lanes = qt_lanes_of_thread() if lanes == NULL else lanes
    h.bins, h.spare = memory, memory + QT_TALLY_TILE
    memset(h.whole.counts, 0, sizeof(h.whole.counts))
    h.whole.least = 0x7F800000
    h.whole.most = _ordered(0xFF800000)


cdef inline int32_t _limit(const Filling* h) noexcept nogil:
    """Bits of 2^exponent."""
    return (h.exponent + 127) << 23 if h.exponent > -127 else <int32_t>1 << (h.exponent + 149)


cdef void _count_out(Filling* h) noexcept nogil:
    """Add the lanes to the counts and clear them, where there was something to count."""
    cdef int32_t half = <int32_t>1 << h.bits, limit = _limit(h)
    cdef int32_t ends[2]
    cdef float values[2]
    cdef int32_t least = <int32_t>_max(h.whole.least, ~limit)     # ordered bits of -2^exponent
    cdef int32_t most = <int32_t>_min(h.whole.most, limit - 1)
    h.pending = 0
    if least > most:
        return
    values[0], values[1] = _float(<uint32_t>_ordered(<uint32_t>least)), _float(<uint32_t>_ordered(<uint32_t>most))
    h.kernel.bins(values, 2, h.bits - h.exponent, half, ends)
    h.kernel.empty(h.lanes, ends[0] & ~7, _smaller(_round_up(ends[1] + 1, 8), 2 * half), h.counts)


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


cdef void _widen_counts(int64_t* h, Py_ssize_t size) noexcept nogil:
    """Add neighbouring bins in pairs, in place: the same counts in bins of twice the width."""
    cdef Py_ssize_t quarter = size // 4, i
    for i in range(quarter):
        h[2 * quarter - 1 - i] = h[2 * quarter - 1 - 2 * i] + h[2 * quarter - 2 - 2 * i]
        h[2 * quarter + i] = h[2 * quarter + 2 * i] + h[2 * quarter + 2 * i + 1]
    memset(h, 0, <size_t>(quarter * 8))
    memset(h + 3 * quarter, 0, <size_t>(quarter * 8))


cdef inline int32_t _magnitude(int32_t least, int32_t most) noexcept nogil:
    """Bits of the largest |x| of a range of ordered bits; 0 for an empty one."""
    cdef int32_t below = least ^ <int32_t>0x7FFFFFFF if least < 0 else 0
    below &= 0x7FFFFFFF
    return <int32_t>_max(below, most if 0 < most < 0x7F800000 else 0)


cdef int32_t _fill(Filling* h, const float* x, Py_ssize_t n, bint widen) noexcept nogil:
    """Count the tile before and take the next, of n <= QT_TALLY_TILE elements; the last tile is followed by an empty one.

    Returns the bits of its largest finite |x|. `widen`: neighbouring bins are joined until there is room for that.
    """
    cdef float kept[QT_TALLY_TILE]
    cdef int32_t half = <int32_t>1 << h.bits, largest, magnitude
    cdef int32_t* bins = h.spare
    cdef MinMaxPart* whole = &h.whole
    cdef MinMaxPart part
    cdef int needed, steps
    if h.pending + QT_TALLY_TILE > QT_TALLY_FULL:
        _count_out(h)
    part.least = 0x7F800000
    part.most = _ordered(0xFF800000)
    largest = h.kernel.tally(x, n, h.bits - h.exponent, half, bins, whole.counts, &part.least, &part.most, h.bins,
                             h.known, h.lanes)
    h.pending += _round_up(h.known, 16)
    h.spare = h.bins
    h.bins = bins
    h.known = n
    magnitude = _magnitude(part.least, part.most)
    needed = (magnitude >> 23) - 126
    if widen and needed > h.exponent:
        _count_out(h)
        steps = <int>_min(needed - h.exponent, h.bits + 1)     # then all counts are beside zero, and stay there
        while steps > 0:
            _widen_counts(h.counts, 2 * <Py_ssize_t>half)
            steps -= 1
        h.exponent = needed
        if largest < 0x7F800000:
            h.kernel.bins(x, n, h.bits - h.exponent, half, bins)
    if largest >= _limit(h):
        h.known = _inside(x, n, _limit(h), kept, &h.outside)
        h.kernel.bins(kept, h.known, h.bits - h.exponent, half, bins)
    whole.least = <int32_t>_min(whole.least, part.least)
    whole.most = <int32_t>_max(whole.most, part.most)
    return magnitude


cdef int64_t _histogram_task(
    const qt_statistics* kernel, const void* x, int source, int exponent, int bits, Py_ssize_t start, Py_ssize_t stop,
    unsigned char* lanes, int64_t* counts,
) noexcept nogil:
    cdef float tile[TILE]
    cdef int32_t bins[2 * QT_TALLY_TILE]
    cdef Filling h
    cdef Py_ssize_t n
    _begin_filling(&h, kernel, counts, bits, exponent, lanes, bins)
    while start < stop:
        n = _smaller(stop - start, QT_TALLY_TILE)
        _fill(&h, _widened(kernel, x, source, start, n, tile), n, False)
        start += n
    _fill(&h, tile, 0, False)
    _count_out(&h)
    return h.outside


cdef Buffer _own_lanes(Py_ssize_t parts, int bits):
    """Cleared lanes for so many tasks; None where those of the threads are enough."""
    cdef Buffer memory = None
    if bits > QT_TALLY_BITS:
        memory = Buffer(parts * QT_TALLY_BIN * (<Py_ssize_t>2 << bits))
        memset(memory.start, 0, <size_t>(parts * QT_TALLY_BIN * (<Py_ssize_t>2 << bits)))
    return memory


def histogram(
    const uint8_t[::1] x, int source, Py_ssize_t size, int exponent, int bits, int64_t[:, ::1] counts, int n_threads,
):
    """Add to counts[part, floor(x / 2^(exponent - bits)) + 2^bits]; each part is one thread's share of x.

    Returns the number of finite values outside [-2^exponent, 2^exponent).
    """
    cdef const qt_statistics* kernel = _statistics
    cdef Py_ssize_t parts = counts.shape[0], p
    cdef Py_ssize_t share = (size + parts - 1) // parts
    cdef int64_t outside = 0
    if size == 0:
        return 0
    cdef Buffer memory = _own_lanes(parts, bits)
    cdef unsigned char* lanes = <unsigned char*>memory.start if memory is not None else NULL
    for p in prange(parts, nogil=True, schedule="static", num_threads=n_threads):
        outside += _histogram_task(kernel, &x[0], source, exponent, bits, _smaller(p * share, size),
                                   _smaller((p + 1) * share, size),
                                   lanes + p * QT_TALLY_BIN * (<Py_ssize_t>2 << bits) if lanes != NULL else NULL,
                                   &counts[p, 0])
    return outside


# All of it at once, for whoever counts many arrays: a block is read from memory once. Blocks are whole rows of a
# channel, or whole channels of one element each, so that the largest magnitude of a block is that of its channel. A
# block that leaves the histogram's range widens it: neighbouring bins are added in pairs until the block fits, which
# gives the counts that a histogram of the final range would have had from the start.

cdef enum:
    OBSERVED = 16384           # elements of a block that is not counted, 64 KiB
    ABREAST = 1024             # elements whose maxima are kept side by side where channels are few


cdef void _observe(
    Filling* h, const float* x, Py_ssize_t size, Py_ssize_t n, Py_ssize_t inner, int32_t* best
) noexcept nogil:
    """See observe(); best is NULL if channels do not matter, and then n and inner do not."""
    cdef const qt_statistics* kernel = h.kernel
    cdef Py_ssize_t longest = OBSERVED if h.counts == NULL else QT_TALLY_TILE
    cdef Py_ssize_t at = 0, m, row, stop, width, channel = 0, within = 0      # of the element at `at`
    cdef int32_t magnitude
    cdef MinMaxPart part
    cdef int32_t abreast[ABREAST]      # of whole rows; those of a channel are joined in the end
    cdef Py_ssize_t rows = 0
    if best != NULL and inner == 1 and 2 * n <= ABREAST:
        rows = _smaller(ABREAST, size) // n * n
    memset(abreast, 0, <size_t>(rows * 4))
    while at < size:
        m = _smaller(longest, size - at)
        if best != NULL and inner == 1:
            m = _smaller(m, n - channel if n >= longest else longest // n * n)
        elif best != NULL:
            m = _smaller(m, inner - within if 2 * inner > longest else longest // inner * inner)
        if h.counts != NULL:
            magnitude = _fill(h, x + at, m, True)
        else:
            part.least = 0x7F800000
            part.most = _ordered(0xFF800000)
            kernel.min_max_32(x + at, m, h.whole.counts, &part.least, &part.most)
            h.whole.least = <int32_t>_min(h.whole.least, part.least)
            h.whole.most = <int32_t>_max(h.whole.most, part.most)
            magnitude = _magnitude(part.least, part.most)
        stop = at + m
        if best == NULL:
            at = stop
        elif rows > 0:
            while at < stop:
                width = _smaller(rows, stop - at)
                kernel.absmax_columns(x + at, width, abreast)
                at += width
        elif inner == 1:
            while at < stop:
                width = _smaller(n - channel, stop - at)
                kernel.absmax_columns(x + at, width, best + channel)
                at += width
                channel = channel + width if channel + width < n else 0
        elif m <= inner:
            best[channel] = <int32_t>_max(best[channel], magnitude)
            at = stop
            within += m
            if within == inner:
                within = 0
                channel = channel + 1 if channel + 1 < n else 0
        else:
            while at < stop:
                best[channel] = kernel.absmax_row(x + at, inner, best[channel])
                at += inner
                channel = channel + 1 if channel + 1 < n else 0
    row = 0
    while row < rows:
        for channel in range(n):
            best[channel] = <int32_t>_max(best[channel], abreast[row + channel])
        row += n


cdef struct Job:
    const float* x
    Py_ssize_t part, parts     # elements of a part, and how many there are
    Py_ssize_t n, inner, group
    int32_t* best              # NULL if channels do not matter
    int64_t* counts            # NULL if there are none
    int exponent
    int64_t[4] seen            # NaN, +Inf, -Inf, zeros
    int32_t* ends              # least and most of each part


cdef void _observe_blocks(Filling* h, const float* x, Job* job) noexcept nogil:
    """One part whose channels lie in blocks of `group`; what fills the last block up is left out."""
    cdef float kept[ABREAST]
    cdef Py_ssize_t group = job.group, channel = 0, width, row, rows, i
    while channel < job.n:
        width = _smaller(group, job.n - channel)
        if width == group:
            _observe(h, x, job.inner * group, group, 1, job.best + channel)
        else:
            row = 0
            while row < job.inner:
                rows = _smaller(job.inner - row, ABREAST // width)
                for i in range(rows):
                    memcpy(kept + i * width, x + (row + i) * group, <size_t>(width * 4))
                _observe(h, kept, rows * width, width, 1, job.best + channel)
                row += rows
        x += job.inner * group
        channel += group


cdef void _observe_job(Filling* h, Job* job) noexcept nogil:
    cdef Py_ssize_t p
    for p in range(job.parts):
        h.whole.least = 0x7F800000
        h.whole.most = _ordered(0xFF800000)
        if job.group > 1:
            _observe_blocks(h, job.x + p * job.part, job)
        else:
            _observe(h, job.x + p * job.part, job.part, job.n, job.inner, job.best)
        if h.counts != NULL:
            _fill(h, job.x, 0, False)
            _count_out(h)
        job.ends[2 * p], job.ends[2 * p + 1] = h.whole.least, h.whole.most
    memcpy(job.seen, h.whole.counts, sizeof(h.whole.counts))
    job.exponent = h.exponent


cdef inline double _end(int32_t ordered) noexcept nogil:
    """A value whose ordered bits are given; a zero has no sign."""
    return _float(<uint32_t>_ordered(<uint32_t>ordered)) + 0.0


def observe(list tasks, int bits):
    """What min_max, absmax and histogram say of arrays, each in one pass over its memory, all without the GIL.

    A task is (x, parts, n, inner, group, best, counts, exponent). x is float32 of `parts` equal parts, each of shape
    (.., n, inner), or, if group > 1, of shape (ceil(n / group), inner, group) with best given. best, of n, is raised to
    the bits of the largest |x| of each index, where x is finite throughout; counts, of 2 * 2^bits, are added to, after
    they were widened until all finite x fit. Either may be None.

    Returns for each task the counts of NaN, +Inf, -Inf and zeros, (least, greatest) of each part as min_max has them,
    and the exponent of its counts.
    """
    cdef const qt_statistics* kernel = _statistics
    cdef Py_ssize_t total = len(tasks), t, size, p
    cdef Buffer memory = Buffer(total * sizeof(Job)), extremes = Buffer(sum([task[1] for task in tasks]) * 8)
    cdef Buffer own = _own_lanes(1, bits)
    cdef unsigned char* lanes = <unsigned char*>own.start if own is not None else NULL
    cdef int32_t bins[2 * QT_TALLY_TILE]
    cdef Job* jobs = <Job*>memory.start
    cdef Job* job
    cdef int32_t* ends = <int32_t*>extremes.start
    cdef Filling h
    cdef const float[::1] x
    cdef int32_t[::1] best
    cdef int64_t[::1] counts
    for t in range(total):
        job = &jobs[t]
        x, job.parts, job.n, job.inner, job.group, best, counts, job.exponent = tasks[t]
        size = x.shape[0]
        job.x = &x[0] if size > 0 else NULL
        job.part = size // job.parts
        job.best = &best[0] if best is not None and job.n > 0 else NULL
        job.counts = &counts[0] if counts is not None and size > 0 else NULL
        job.ends = ends
        ends += 2 * job.parts
    with nogil:
        for t in range(total):
            _begin_filling(&h, kernel, jobs[t].counts, bits, jobs[t].exponent, lanes, bins)
            _observe_job(&h, &jobs[t])
    result = []
    for t in range(total):
        job = &jobs[t]
        ranges = [(_end(job.ends[2 * p]), _end(job.ends[2 * p + 1])) for p in range(job.parts)]
        result.append((job.seen[0], job.seen[1], job.seen[2], job.seen[3], ranges, job.exponent))
    return result


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
#     for each B panel, each slice of K (1024), each A panel:
#       tile()      (B slice stays in L1; carries out the end of the tile before: corrections, requantization, store)
#
# Without a zero point of B, a kernel that can begins a whole tile with the terms of the columns and stores the result
# where it belongs, int32 sums (`stores`) or codes (`ends`), so that nothing is left for the next tile.
#
# A panel of A that meets all of B in one go is packed just before, into L1; rows that start on cache lines are not
# packed at all if the kernel can read them.
#
# If moreover all of A is one block and K is not too long, B that is used once is not packed ahead: each task packs its
# own columns, few enough to stay in L2, so that packed B is neither written to memory nor read again.

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
    Py_ssize_t chunk         # fused: columns of B that a panel of A meets in one go
    bint fused               # tile() carries out the epilogue
    bint direct              # stream() reads B as it is
    bint in_place            # tile() reads A as it is, but for a last panel of few rows
    bint by_panel            # A is packed a panel at a time, just before its only use
    bint by_range            # each task packs its columns of B
    bint interleaved         # tasks: row blocks in turn, else ranges of columns in turn
    Py_ssize_t row_blocks
    Py_ssize_t col_ranges
    Py_ssize_t cols          # of a range, a multiple of nr
    uint8_t a_flip           # 0x80 if a is signed
    uint8_t b_flip           # 0x80 if b is unsigned
    char *b_packed
    Py_ssize_t b_bytes       # packed, of one item
    uint32_t *colsum         # n_padded per item
    const qt_requantize *requantize   # NULL: int32 out


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
    const uint8_t *b            # by_range: not packed
    Py_ssize_t b_k_stride
    Py_ssize_t b_col_stride
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
    uint8_t *columns     # a piece of B, packed
    uint32_t *row_term   # fused: K*za - rowsum
    uint32_t *colsum     # of B that is packed piece by piece
    Py_ssize_t *packed   # fused: 1 + the row block that `a` holds, 0 if none


cdef Py_ssize_t _carve(const Product *p, char *at, Workspace *ws) noexcept nogil:
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
        if p.by_range:
            ws.colsum = <uint32_t *>at
            at += cols
            ws.columns = <uint8_t *>at
            at += p.cols * p.k_padded * p.kernel.b_size
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


cdef enum:
    ONE_BLOCK_BYTES = 786432   # packed A of a task
    RANGE_BYTES = 393216       # packed B of a task that packs it, at most
    RANGE_FITTING = 196608     # and rather: with both operands and the results it then stays in L2
    ONE_RANGE = 262144         # all of B in one range: then A is not packed as a whole, which leaves it the room
    RANGE_COLS = 256           # at least: shorter runs along the rows of B are slower than packing ahead
    SLICE = 1024               # K of a B panel that stays in L1
    L2_SUMS = 524288           # int32 results that stay in L2
    IN_PLACE_APART = 2048      # rows a multiple of so many bytes apart meet in the same sets of L1, more than it holds


cdef void _plan(Product *p, Py_ssize_t items, int n_threads) noexcept nogil:
    """Choose blocks: packed A in about 256 KiB, B tiles in the rest of L2, four tasks per thread if possible."""
    cdef Py_ssize_t mr = p.kernel.mr, nr = p.kernel.nr, wanted = 4 * n_threads if n_threads > 1 else 1
    cdef Py_ssize_t blocks, fitting
    _plan_b(p)
    if p.fused:
        p.mc = _max(mr, ONE_BLOCK_BYTES // _max(1, p.k_padded * p.kernel.a_size) // mr * mr)
        blocks = _ceil_div(p.m, p.mc)
        if blocks > 1:
            blocks = _round_up(blocks, n_threads)   # blocks of one size: none is left over for one thread
        p.mc = _round_up(_ceil_div(p.m, blocks), mr)
        p.slice = p.k_padded
        if p.mc > mr and p.k_padded > (2048 if p.requantize == NULL else SLICE):
            p.slice = SLICE
    else:
        p.mc = _max(16, _min(64, 262144 // _max(1, p.k_padded * p.kernel.a_size)))
        p.mc = _round_up(_min(p.mc, p.m), mr)   # whole panels: the kernel writes all its rows
    p.row_blocks = _ceil_div(p.m, p.mc)
    p.col_ranges = _min(_ceil_div(wanted, _max(1, items * p.row_blocks)), _ceil_div(p.n, 4 * nr))
    p.cols = _round_up(_ceil_div(p.n, p.col_ranges), nr)
    if p.by_range:
        fitting = ONE_RANGE if p.k_padded * p.n_padded <= ONE_RANGE else RANGE_FITTING
        p.cols = _min(p.cols, _max(fitting // _max(1, p.k_padded) // 64 * 64, RANGE_COLS))
    p.col_ranges = _ceil_div(p.n, p.cols)
    p.interleaved = 1 < p.row_blocks <= n_threads


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


cdef void _multiply_fused(const Product *p, const Workspace *ws, const Sides *s, const char *b, const uint32_t *colsum,
                          const Batch *batch, const uint8_t *a, Py_ssize_t row, Py_ssize_t rows, Py_ssize_t col_start,
                          Py_ssize_t col_stop, char *out) noexcept nogil:
    """The same as _multiply, with the epilogue of each tile inside the next. One zero point and scale for all rows.

    ``b`` and ``colsum`` start at column ``col_start``, ``a`` at row ``row``.
    """
    cdef const qt_gemm_u8s8 *kernel = p.kernel
    cdef Py_ssize_t mr = kernel.mr, nr = kernel.nr, panels = _ceil_div(rows, mr)
    cdef Py_ssize_t width = 4 if p.requantize == NULL else 1
    cdef Py_ssize_t k0, kc, i, j, j0, chunk, chunk_stop, slot, tiles = 0, row_stride = batch.row_stride
    cdef bint last
    cdef qt_tile_end[3] ends   # of the tiles before in turn, and of a tile that ends itself
    cdef qt_tile_end *end
    cdef qt_tile tile
    cdef bint sliced = p.slice < p.k_padded, stores, finishes, whole
    cdef uint32_t a_zero = <uint32_t>s.a_zero[0] + p.a_flip
    _terms(p, ws, s, colsum - col_start, rows, col_start, col_stop, ends, 3)
    if kernel.begin != NULL:
        kernel.begin()
    # no end is left for a whole tile
    stores = kernel.stores and p.requantize == NULL and ends[0].b_zero == NULL
    finishes = kernel.ends and p.requantize != NULL and ends[0].b_zero == NULL
    chunk = p.chunk
    memset(&tile, 0, sizeof(tile))
    tile.a_passes = chunk == nr
    tile.out_ld = p.n
    j0 = col_start
    while j0 < col_stop:
        chunk_stop = _min(j0 + chunk, col_stop)
        k0 = 0
        while True:
            tile.kc = kc = _min(p.slice, p.k_padded - k0)
            tile.first = k0 == 0
            last = k0 + kc >= p.k_padded
            for i in range(panels):
                tile.rows = _min(mr, rows - i * mr)
                if p.by_panel:
                    kernel.pack_a(a + i * mr * row_stride, row_stride, batch.k_stride, tile.rows, p.k, p.a_flip, ws.a,
                                  ws.rowsum + i * mr)
                    for j in range(i * mr, i * mr + tile.rows):
                        ws.row_term[j] = <uint32_t>p.k * a_zero - ws.rowsum[j]
                    tile.a = ws.a
                elif p.in_place and tile.rows == mr:
                    tile.a, tile.a_ld = a + i * mr * row_stride + k0, row_stride
                else:
                    tile.a, tile.a_ld = ws.a + (i * mr * p.k_padded + k0 * mr) * kernel.a_size, 0
                j = j0
                while j < chunk_stop:
                    # two halves in turn, because the end of a tile is outstanding while the next is summed up
                    slot = ((j // nr) & 1) * panels + i if sliced else tiles & 1
                    tile.acc = ws.acc + slot * mr * nr
                    tile.b = b + ((j - col_start) * p.k_padded + k0 * nr) * kernel.b_size
                    if chunk == nr:   # the next slice of B, a part by each panel of A
                        tile.ahead_bytes = _ceil_div(kc * nr, panels)
                        tile.ahead = <const char *>tile.b + kc * nr + i * tile.ahead_bytes
                    whole = tile.rows == mr and (finishes or (stores and j + nr <= col_stop))
                    tile.start = ws.bias + (j - col_start) if whole else NULL
                    tile.out = <uint32_t *>out + (row + i * mr) * p.n + j if whole and stores and last else NULL
                    tile.own = NULL
                    end = &ends[2 if whole else tiles & 1]
                    if last and whole and finishes:
                        end.rows = mr
                        end.cols = _min(nr, col_stop - j)
                        end.col_term = tile.start
                        end.multiplier = ws.multiplier + (j - col_start)
                        end.out = out + (row + i * mr) * p.n + j
                        tile.own = end
                    kernel.tile(&tile)
                    tile.earlier = NULL
                    if last and not whole:
                        tiles += 1
                        end.acc = tile.acc
                        end.rows = tile.rows
                        end.cols = _min(nr, col_stop - j)
                        end.row_term = ws.row_term + i * mr
                        end.col_term = ws.bias + (j - col_start)
                        if end.b_zero != NULL:
                            end.b_zero = ws.b_zero + (j - col_start)
                        if end.multiplier != NULL:
                            end.multiplier = ws.multiplier + (j - col_start)
                        end.out = out + ((row + i * mr) * p.n + j) * width
                        tile.earlier = end
                    j += nr
            k0 += kc
            if last:
                break
        j0 = chunk_stop
    if tile.earlier != NULL:
        kernel.finish(tile.earlier)
    if kernel.end != NULL:
        kernel.end()


cdef void _terms(const Product *p, const Workspace *ws, const Sides *s, const uint32_t *colsum, Py_ssize_t rows,
                 Py_ssize_t col_start, Py_ssize_t col_stop, qt_tile_end *ends, int n_ends) noexcept nogil:
    """What the ends of the tiles of a task have in common."""
    cdef const qt_requantize *q = p.requantize
    cdef uint32_t a_zero = <uint32_t>s.a_zero[0] + p.a_flip, b_shift = 128 if p.b_flip else 0, any_b_zero = 0
    cdef Py_ssize_t i, j, cols = col_stop - col_start
    cdef float multiplier
    if s.b_zero_step == 0:   # loops apart, which the compiler makes of vectors
        any_b_zero = <uint32_t>s.b_zero[0] - b_shift
        for j in range(cols):
            ws.b_zero[j] = any_b_zero
    else:
        for j in range(cols):
            ws.b_zero[j] = <uint32_t>s.b_zero[(col_start + j) * s.b_zero_step] - b_shift
            any_b_zero |= ws.b_zero[j]
    for j in range(cols):
        ws.bias[j] = -a_zero * colsum[col_start + j]
    if s.bias != NULL:
        for j in range(cols):
            ws.bias[j] += <uint32_t>s.bias[col_start + j]
    if any_b_zero:   # else nobody asks for them, and A that is read in place has no sums
        for i in range(rows):
            ws.row_term[i] = <uint32_t>p.k * a_zero - ws.rowsum[i]
    if q != NULL:
        if s.b_scale_step == 0:
            qt_multipliers(s.a_scale[0], s.b_scale, q.y_scale, 1, ws.multiplier)
            multiplier = ws.multiplier[0]
            for j in range(cols):
                ws.multiplier[j] = multiplier
        else:
            for j in range(cols):
                ws.b_scale[j] = s.b_scale[(col_start + j) * s.b_scale_step]
            qt_multipliers(s.a_scale[0], ws.b_scale, q.y_scale, cols, ws.multiplier)
    for i in range(n_ends):
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
            y = <uint8_t *>out + (row + i) * p.n + col
            qt_requantize_row(q, acc, cols, a_scale, ws.b_scale, ws.multiplier, y)
        else:
            for j in range(cols):
                (<uint32_t *>out)[(row + i) * p.n + col + j] = acc[j]


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
        self.packed = Buffer(items * p.b_bytes, HUGE_PACKED)
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
    _plan_a(p, batch)
    tasks = batch.size * p.row_blocks * p.col_ranges
    n_threads = <int>_min(n_threads, tasks)
    stride = _carve(p, NULL, &probe)
    scratch = Buffer(stride * n_threads)
    cdef char *base = (<Buffer>scratch).start
    for thread in range(n_threads):
        _carve(p, base + thread * stride, &probe)
        probe.packed[0] = 0
    if n_threads == 1:
        with nogil:
            for task in range(tasks):
                _matmul_task(p, batch, base, task)
        return 0
    if p.interleaved and p.row_blocks == n_threads:   # each thread has a block of A of its own, and packs it once
        with nogil, parallel(num_threads=n_threads):
            for task in prange(tasks, schedule="static", chunksize=1):
                _matmul_task(p, batch, base + threadid() * stride, task)
        return 0
    with nogil, parallel(num_threads=n_threads):
        for task in prange(tasks, schedule="dynamic", chunksize=1):
            _matmul_task(p, batch, base + threadid() * stride, task)
    return 0


cdef void _plan_a(Product *p, const Batch *batch) noexcept nogil:
    """The order of the tiles of a task, and which of A is packed when."""
    cdef Py_ssize_t i, j, nr = p.kernel.nr
    cdef uint32_t b_shift = 128 if p.b_flip else 0, any_b_zero = 0
    cdef bint one_range
    p.chunk = nr
    p.in_place = p.by_panel = False
    if not p.fused or p.k == 0 or p.slice < p.k_padded:
        return
    one_range = p.col_ranges == 1 and p.k_padded * p.n_padded <= ONE_RANGE
    for i in range(batch.size if batch.b_zero_item else 1):
        for j in range(p.n if batch.sides.b_zero_step else 1):
            any_b_zero |= <uint32_t>batch.sides.b_zero[i * batch.b_zero_item + j * batch.sides.b_zero_step] - b_shift
    # From one tile to the next: along the rows of A if B is the operand that stays in L1, else along the columns of a
    # chunk of B. That way int32 results are written in longer runs, and they are what the time goes to, unless whole
    # tiles are stored in one go and leave L2 anyway; and if the chunk is all of B, no panel of A is needed twice.
    if p.requantize != NULL:
        if not (one_range and p.kernel.in_place):   # vector registers wait for B from L2 longer than tiles do
            return
    elif p.kernel.stores and any_b_zero == 0 and p.m * p.n > L2_SUMS:
        return
    p.chunk = _max(nr, 393216 // p.k_padded // nr * nr)
    if p.chunk == nr:
        return
    # Rows that start on cache lines are read where they are, since a tile of others takes twice the lines.
    p.in_place = (p.kernel.in_place and p.a_flip == 0 and any_b_zero == 0 and batch.k_stride == 1
                  and p.k % p.kernel.kr == 0 and batch.row_stride % IN_PLACE_APART != 0
                  and ((<uintptr_t>batch.a | <uintptr_t>batch.row_stride | <uintptr_t>batch.a_item_step) & 63) == 0)
    p.by_panel = not p.in_place and p.col_ranges == 1 and p.n <= p.chunk


cdef void _matmul_task(const Product *p, const Batch *batch, char *base, Py_ssize_t task) noexcept nogil:
    cdef Workspace ws
    cdef Sides s = batch.sides
    # row blocks before columns: as a rule a thread meets its own block again, and has it packed
    cdef Py_ssize_t r = task // (p.row_blocks * p.col_ranges), index = task % (p.row_blocks * p.col_ranges)
    cdef Py_ssize_t block = r * p.row_blocks + (index % p.row_blocks if p.interleaved else index // p.col_ranges)
    cdef Py_ssize_t row = block % p.row_blocks * p.mc, rows = _min(p.mc, p.m - row)
    cdef Py_ssize_t col = (index // p.row_blocks if p.interleaved else index % p.col_ranges) * p.cols
    cdef Py_ssize_t stop = _min(col + p.cols, p.n)
    cdef Py_ssize_t a_item = batch.a_item[r] if batch.a_item != NULL else 0
    cdef Py_ssize_t b_item = batch.b_item[r] if batch.b_item != NULL else 0
    cdef char *out = batch.out + r * p.m * p.n * (1 if p.requantize != NULL else 4)
    cdef Py_ssize_t whole
    cdef const uint8_t *a
    _carve(p, base, &ws)
    s.a_zero += r * batch.a_zero_item
    s.b_zero += r * batch.b_zero_item
    if p.requantize != NULL:
        s.a_scale += r * batch.a_scale_item
        s.b_scale += r * batch.b_scale_item
    a = batch.a + a_item * batch.a_item_step + row * batch.row_stride
    if p.by_panel:
        memset(ws.rowsum, 0, <size_t>rows * 4)
    elif p.in_place:
        whole = rows // p.kernel.mr * p.kernel.mr
        if whole < rows and ws.packed[0] != block + 1:
            p.kernel.pack_a(a + whole * batch.row_stride, batch.row_stride, 1, rows - whole, p.k, 0,
                            ws.a + whole * p.k_padded, ws.rowsum)
            ws.packed[0] = block + 1
    elif ws.packed[0] != block + 1:   # a thread that goes on with the same rows has them packed
        _pack_a(p, &ws, a, batch.row_stride, batch.k_stride, rows)
        ws.packed[0] = block + 1
    if p.by_range:
        memset(ws.colsum, 0, <size_t>p.cols * 4)
        p.kernel.pack_b(batch.b + col * batch.b_col_stride, batch.b_k_stride, batch.b_col_stride, stop - col, p.k,
                        p.b_flip, ws.columns, ws.colsum)
        _multiply_fused(p, &ws, &s, <const char *>ws.columns, ws.colsum, batch, a, row, rows, col, stop, out)
    elif p.fused:
        _multiply_fused(p, &ws, &s, p.b_packed + b_item * p.b_bytes + col * p.k_padded * p.kernel.b_size,
                        p.colsum + b_item * p.n_padded + col, batch, a, row, rows, col, stop, out)
    else:
        _multiply(p, &ws, &s, b_item, row, rows, col, stop, out)


@cython.freelist(8)
cdef class Matrix:
    """The memory of an array (rows, columns) of int8 or uint8, any strides; why not a memoryview: see Bytes."""
    cdef Py_buffer view
    cdef Py_ssize_t rows, cols, row_step, col_step   # rows: -1 if there are not two axes
    cdef const uint8_t *data   # NULL if there is none

    def __cinit__(self, array not None):
        PyObject_GetBuffer(array, &self.view, PyBUF_STRIDED_RO)
        self.rows = -1
        if self.view.ndim == 2:
            self.rows, self.cols = self.view.shape[0], self.view.shape[1]
            self.row_step, self.col_step = self.view.strides[0], self.view.strides[1]
        self.data = <const uint8_t *>self.view.buf if self.rows > 0 and self.cols else NULL

    def __dealloc__(self):
        PyBuffer_Release(&self.view)


# NumPy has one object for each of its own types. Another one of the same meaning takes the general way.
cdef object _UINT8 = _dtype("uint8"), _INT8 = _dtype("int8"), _INT32 = _dtype("int32"), _FLOAT32 = _dtype("float32")


cdef object _byte_type(array):
    """int8 or uint8, or None: another type, or not an array of NumPy itself."""
    if type(array) is not _ndarray:
        return None
    kind = array.dtype
    return kind if kind is _UINT8 or kind is _INT8 else None


cdef bint _one_value(value, kind, void *to, size_t size) except -1:
    """Whether ``value`` is one value of the type ``kind``, which is copied."""
    cdef Py_buffer view
    cdef bint one
    if (type(value) is not _ndarray and not isinstance(value, _generic)) or value.dtype is not kind:
        return False
    PyObject_GetBuffer(value, &view, PyBUF_STRIDED_RO)
    one = view.ndim == 0
    if one:
        memcpy(to, view.buf, size)
    PyBuffer_Release(&view)
    return one


cdef bint _one_code(value, kind, int32_t *code) except -1:
    """The same for int8 or uint8."""
    cdef uint8_t byte = 0
    if not _one_value(value, kind, &byte, 1):
        return False
    code[0] = <int32_t><int8_t>byte if kind is _INT8 else <int32_t>byte
    return True


cdef Buffer _vector(value, kind, Py_ssize_t n):
    """``n`` values from a vector of the type ``kind``, bytes as int32; None if it is not one."""
    cdef Py_buffer view
    cdef Py_ssize_t i
    cdef const char *at
    cdef Buffer found = None
    if type(value) is not _ndarray or value.dtype is not kind:
        return None
    PyObject_GetBuffer(value, &view, PyBUF_STRIDED_RO)
    try:
        if view.ndim == 1 and view.shape[0] == n:
            found = Buffer(n * 4)
            for i in range(n):
                at = <const char *>view.buf + i * view.strides[0]
                if kind is _FLOAT32:
                    memcpy(found.start + 4 * i, at, 4)
                elif kind is _INT8:
                    (<int32_t *>found.start)[i] = (<const int8_t *>at)[0]
                else:
                    (<int32_t *>found.start)[i] = (<const uint8_t *>at)[0]
    finally:
        PyBuffer_Release(&view)
    return found


cdef object _result(Py_ssize_t m, Py_ssize_t n, kind, Py_ssize_t item_size):
    """Uninitialized (m, n), rows on cache lines where their length allows: a store across two takes twice as long."""
    cdef Py_ssize_t row = n * item_size
    if row % 64 or m * row < 32768:
        return _empty((m, n), kind)
    memory = _empty(m * row + 63, _UINT8)
    return _ndarray((m, n), kind, memory, -<Py_ssize_t><uintptr_t>Bytes(memory).view.buf & 63)


def matmul_2d(
    a_array,        # IN  (M, K)
    b_array,        # IN  (K, N), or PackedMatrices of one item
    a_zero,         # IN  one value of the type of a; None without a_scale: 0
    b_zero,         # IN  one value of the type of b, or (N,); None without a_scale: 0
    a_scale,        # IN  one float32; None: the result is int32
    b_scale,        # IN  one float32, or (N,) if b_zero is a vector
    y_scale,        # IN  one float32
    y_zero,         # IN  one value of the type of the result
    num_threads,    # IN  1, or what `threads` is called with
    threads,        # IN  (num_threads, multiply-adds, elements of b to pack) -> threads
):
    """The common case of matmul(): two matrices, one zero point and scale of a. B of a few rows is not packed.

    From the arguments of the caller to the result in one call, because after a product nothing of the interpreter is in
    the first-level cache: the same in Python took 10 microseconds, and a product of 256x256x256 on AMX takes 17.

    Returns:
        (M, N), or None if this is another case, or an error: the general way tells.
    """
    cdef Product p
    cdef Batch batch
    cdef qt_requantize q
    cdef Matrix a, b = None
    cdef PackedMatrices packed = None
    cdef Bytes y
    cdef Buffer zeros = None, scales = None
    cdef bint few, by_range = False, codes = a_scale is not None, a_signed, b_signed
    cdef int32_t a_zero32 = 0, b_zero32 = 0, y_zero32 = 0
    cdef float sa = 1, sb = 1, sy = 1
    cdef Py_ssize_t k, n
    cdef int n_threads = 1
    a_kind = _byte_type(a_array)
    if a_kind is None:
        return None
    a = Matrix(a_array)
    if type(b_array) is PackedMatrices:
        packed = b_array
        if packed.kernel != _gemm:
            return None
        b_kind = _INT8 if packed.is_signed else _UINT8
        k, n = packed.plan.k, packed.plan.n
    else:
        b_kind = _byte_type(b_array)
        if b_kind is None:
            return None
        b = Matrix(b_array)
        if b.rows < 0:
            return None
        k, n = b.rows, b.cols
    if a.rows < 0 or a.cols != k:
        return None
    if (codes or a_zero is not None) and not _one_code(a_zero, a_kind, &a_zero32):
        return None
    if (codes or b_zero is not None) and not _one_code(b_zero, b_kind, &b_zero32):
        zeros = _vector(b_zero, b_kind, n)
        if zeros is None:
            return None
    if codes:
        if not _one_value(a_scale, _FLOAT32, &sa, 4) or not _one_value(y_scale, _FLOAT32, &sy, 4):
            return None
        if zeros is not None:
            scales = _vector(b_scale, _FLOAT32, n)
            if scales is None:
                return None
        elif not _one_value(b_scale, _FLOAT32, &sb, 4):
            return None
        y_kind = _INT8 if _one_code(y_zero, _INT8, &y_zero32) else _UINT8
        if y_kind is _UINT8 and not _one_code(y_zero, _UINT8, &y_zero32):
            return None
        q = _requantize(sy, y_zero32, y_kind is _INT8, False)
    else:
        y_kind = _INT32
    if type(num_threads) is not int or num_threads != 1:
        n_threads = threads(num_threads, a.rows * n * k, k * n if packed is None else 0)
    out = _result(a.rows, n, y_kind, 1 if codes else 4)
    if a.rows == 0 or n == 0:
        return out
    y = Bytes(out, True)
    a_signed, b_signed = a_kind is _INT8, b_kind is _INT8
    memset(&batch, 0, sizeof(batch))
    few = packed is None and _gemm.tile != NULL and a.rows <= _gemm.mr
    if packed is None and not few:
        by_range = (_gemm.tile != NULL and b.rows * RANGE_COLS <= RANGE_BYTES
                    and _round_up(a.rows, _gemm.mr) * _round_up(b.rows, _gemm.kr) <= ONE_BLOCK_BYTES)
    if packed is None and not few and not by_range:
        packed = PackedMatrices.__new__(PackedMatrices)
        packed._pack(b.data, 1, b.rows, b.cols, 0, b.row_step, b.col_step, b_signed, n_threads)
    if few or by_range:
        memset(&p, 0, sizeof(p))
        p.by_range = by_range
        p.kernel = _gemm
        p.k, p.n = b.rows, b.cols
        p.b_flip = 0 if b_signed else 0x80
    else:
        p = packed.plan
    p.m = a.rows
    p.a_flip = 0x80 if a_signed else 0
    p.requantize = &q if codes else NULL
    batch.size = 1
    batch.a, batch.row_stride, batch.k_stride = a.data, a.row_step, a.col_step
    batch.sides.a_zero, batch.sides.a_scale = &a_zero32, &sa
    batch.sides.b_zero, batch.sides.b_scale = &b_zero32, &sb
    if zeros is not None:
        batch.sides.b_zero, batch.sides.b_zero_step = <const int32_t *>zeros.start, 1
    if scales is not None:
        batch.sides.b_scale, batch.sides.b_scale_step = <const float *>scales.start, 1
    batch.out = <char *>y.view.buf
    if few:
        _stream(&p, &batch, b.data, b.row_step, b.col_step, n_threads)
    else:
        if by_range:
            batch.b, batch.b_k_stride, batch.b_col_stride = b.data, b.row_step, b.col_step
        _products(&p, &batch, n_threads)
    return out


# B of a few rows: packing it would write and read again what is used once. Each task takes a range of columns, walks B
# in pieces that fit the first-level cache, packs one, multiplies it with the one panel of A, and adds to sums that fit
# the second level. Row-major B is walked along its rows, 64 to 256 of them at a time, for the sake of the TLB. One row
# of A times row-major B is multiplied straight from B if the kernel can, in the widest ranges whose sums stay in L1.

cdef enum:
    STREAM_COLS = 1024
    ROW_COLS = 4096

cdef int _stream(Product *p, const Batch *batch, const uint8_t *b, Py_ssize_t k_stride, Py_ssize_t col_stride,
                 int n_threads) except -1:
    cdef Py_ssize_t tasks, stride, task, widest = STREAM_COLS
    cdef Workspace ws
    _plan_b(p)
    p.fused = True
    p.mc = p.kernel.mr
    p.direct = p.kernel.stream != NULL and p.m == 1 and col_stride == 1
    if p.direct:
        p.mc, p.nc, p.slice = 1, 64, 0
        widest = ROW_COLS
    elif k_stride == 1 and col_stride != 1:   # a piece: columns and K
        p.nc, p.slice = p.kernel.nr, 1024
    elif p.m <= 4:
        p.nc, p.slice = _round_up(512, p.kernel.nr), p.kernel.kr   # sums are cheap to load again: the longest runs
    else:
        p.nc, p.slice = _round_up(256, p.kernel.nr), 256
    tasks = _max(_ceil_div(p.n, widest), _min(n_threads, _ceil_div(p.n, p.nc)))
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
    at += _round_up(p.mc * p.k_padded * p.kernel.a_size, 64)
    ws.columns = <uint8_t *>at   # the packed piece of B
    at += _round_up(p.nc * p.slice * p.kernel.b_size, 64)
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
    cdef qt_tile tile
    memset(&tile, 0, sizeof(tile))
    tile.rows = p.m
    _carve_stream(p, base, &ws)
    memset(ws.colsum, 0, <size_t>p.cols * 4)
    if p.direct:
        _stream_row(p, batch, &ws, b, k_stride, col, stop)
        return
    if ws.packed[0] == 0:
        _pack_a(p, &ws, batch.a, batch.row_stride, batch.k_stride, p.m)
        ws.packed[0] = 1
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
            tile.kc = padded
            tile.first = k0 == 0
            tile.a = ws.a + k0 * mr * kernel.a_size
            i = 0
            while i < width:
                tile.b = ws.columns + i * padded * kernel.b_size
                tile.acc = ws.acc + (j + i - col) * mr
                kernel.tile(&tile)
                i += nr
            j += width
        k0 += kc
    _stream_end(p, batch, &ws, col, stop)
    if kernel.end != NULL:
        kernel.end()


cdef void _stream_row(const Product *p, const Batch *batch, Workspace *ws, const uint8_t *b, Py_ssize_t k_stride,
                      Py_ssize_t col, Py_ssize_t stop) noexcept nogil:
    cdef Py_ssize_t k0 = 0, kc, k
    cdef uint8_t *a = <uint8_t *>ws.a
    cdef uint8_t flip = p.a_flip
    cdef uint32_t rowsum = 0
    if ws.packed[0] == 0:
        for k in range(p.k):
            a[k] = batch.a[k * batch.k_stride] ^ flip
            rowsum += a[k]
        memset(a + p.k, 0, <size_t>(p.k_padded - p.k))
        ws.rowsum[0] = rowsum
        ws.packed[0] = 1
    memset(ws.acc, 0, <size_t>p.cols * 4)
    while k0 < p.k:
        kc = _min(p.kernel.stream_rows, p.k - k0)
        p.kernel.stream(a + k0, b + k0 * k_stride + col, k_stride, kc, stop - col, p.b_flip, k0 + kc == p.k, ws.acc,
                        ws.colsum)
        k0 += kc
    _stream_end(p, batch, ws, col, stop)


cdef void _stream_end(const Product *p, const Batch *batch, const Workspace *ws, Py_ssize_t col,
                      Py_ssize_t stop) noexcept nogil:
    cdef Py_ssize_t nr = p.kernel.nr, j = 0
    cdef qt_tile_end[1] ends
    cdef qt_tile_end *end = &ends[0]
    _terms(p, ws, &batch.sides, ws.colsum - col, p.m, col, stop, ends, 1)
    end.row_term = ws.row_term
    end.rows = p.m
    while j < stop - col:
        end.acc = ws.acc + j * p.mc
        end.cols = _min(nr, stop - col - j)
        end.col_term = ws.bias + j
        if end.b_zero != NULL:
            end.b_zero = ws.b_zero + j
        if end.multiplier != NULL:
            end.multiplier = ws.multiplier + j
        end.out = batch.out + (col + j) * (1 if p.requantize != NULL else 4)
        p.kernel.finish(end)
        j += nr


# --------------------------------------------------------------------------------------------------------- convolution

# A convolution is a product [channels out][K] x [K][positions] per group of an image, so that its output is written
# where NCHW wants it. The weights are A, packed once; B is never built: see conv.h for the padded copy of a band of
# output lines, in which a row of B, one tap of one channel, is one run of bytes.
#
#   for each task (image, group, band, range of channels):   copy the band      -> L2   (no copy if nothing is padded)
#     for each nc positions:   pack B (K x nc) from the runs                     -> L2
#       for each A panel (mr channels), each tile of columns:
#         for each kc of K:  micro-kernel      (the sums stay in L1)
#         per channel: correct, add the bias, requantize, write the segments inside the lines
#
# With one input channel per group (depthwise) K is too short for that: a direct kernel over the same copy.

cdef enum:
    COPY = 524288          # bytes of the copy of a band of a product: a quarter of L2 with the packed B beside it
    LINE = 16384           # bytes of the copy of a depthwise band: L1
    RUN_K = 1024           # K of a block


cdef struct Channels:
    # Parameters per output channel, and the one scale and zero point of x.
    const int32_t *w_zero
    const int32_t *bias      # NULL: none
    const float *w_scale     # these three are NULL for int32 out
    const float *multiplier
    const qt_requantize *q
    float x_scale
    int32_t x_zero
    int x_sign               # 128 if x is signed, else 0
    int w_sign
    bint one_zero            # all channels have the same zero point


cdef struct ConvProduct:
    # Shape and blocking of the products of one convolution.
    const qt_gemm_u8s8 *kernel
    const qt_conv_ends *ends
    bint runs                # the packer takes runs
    bint direct              # B is in x itself
    qt_band band             # the layout; all bands share it
    Py_ssize_t m             # channels out of a group
    Py_ssize_t m_padded
    Py_ssize_t k
    Py_ssize_t k_padded
    Py_ssize_t nc            # columns of packed B
    Py_ssize_t kc            # K of a block
    Py_ssize_t width         # columns of a tile of sums: a B panel if the kernel has tile(), else all nc
    Py_ssize_t slices        # tasks: slices x line_blocks x column_blocks x ranges per group of an image
    Py_ssize_t line_blocks
    Py_ssize_t column_blocks
    Py_ssize_t ranges
    Py_ssize_t rows          # channels of a range, a multiple of mr
    const char *a            # packed weights, a_bytes per group
    Py_ssize_t a_bytes
    const uint32_t *rowsum   # m_padded per group
    const Py_ssize_t *at     # K offsets of the runs


cdef struct ConvWorkspace:
    # One thread's share of the scratch buffer.
    uint8_t *copy
    uint8_t *columns         # kc x nc runs, for packers that do not take runs
    char *b
    uint32_t *colsum
    uint32_t *less           # zero point of w times colsum
    uint32_t *add            # per channel of an A panel
    uint32_t *acc            # mr x width
    qt_segment *segments     # of all tiles, those of tile t from first[t] to first[t + 1]
    Py_ssize_t *first


cdef class PackedWeights:
    """Weights of a convolution as the micro-kernel wants them: not of the depthwise kind, which needs no packing."""
    cdef const qt_gemm_u8s8 *row
    cdef Buffer packed, sums
    cdef Py_ssize_t a_bytes

    def kernel(self):
        """Name of the micro-kernel whose layout this is."""
        return self.row.name.decode()

    def is_current(self):
        """Whether that is the micro-kernel of the next call."""
        return self.row == _gemm


cdef void _conv_blocks(ConvProduct *p) noexcept nogil:
    """The blocking of the weights, which must not depend on x."""
    cdef Py_ssize_t blocks, kr = p.kernel.kr
    p.m_padded = _round_up(p.m, p.kernel.mr)
    p.k_padded = _round_up(p.k, kr)
    blocks = 1
    if p.kernel.tile == NULL:
        blocks = _max(1, _ceil_div(p.k_padded, _min(RUN_K, p.kernel.max_kc)))
    p.kc = _max(kr, _round_up(_ceil_div(p.k_padded, blocks), kr))   # equal blocks
    p.a_bytes = _round_up(p.m_padded * p.k_padded * p.kernel.a_size, 64)


cdef void _pack_weights(const ConvProduct *p, const uint8_t *w, uint8_t flip, Py_ssize_t row, char *a,
                        uint32_t *rowsum) noexcept nogil:
    """Pack a panel of channels of one group from ``row`` on; ``w``, ``a`` and ``rowsum`` are the group's."""
    cdef Py_ssize_t k0 = 0, kc, rows = _min(p.kernel.mr, p.m - row)
    memset(rowsum + row, 0, <size_t>rows * 4)
    while k0 < p.k_padded:
        kc = _min(p.kc, p.k_padded - k0)
        p.kernel.pack_a(w + row * p.k + k0, p.k, 1, rows, _min(kc, p.k - k0), flip,
                        a + (k0 * p.m_padded + row * kc) * p.kernel.a_size, rowsum + row)
        k0 += kc


def pack_conv(
    const uint8_t[:, :, :, :, ::1] w not None,  # IN  (channels out, C / groups, kD, kH, kW)
    Py_ssize_t groups,
    bint w_signed,
    int n_threads,
):
    """The weights of a convolution, packed for the current micro-kernel."""
    cdef ConvProduct p
    cdef PackedWeights packed = PackedWeights()
    cdef Py_ssize_t blocks, task, group
    cdef uint8_t flip = 0x80 if w_signed else 0
    cdef const uint8_t *w_data = &w[0, 0, 0, 0, 0] if w.size else NULL
    memset(&p, 0, sizeof(p))
    p.kernel = _gemm
    p.m = w.shape[0] // groups
    p.k = w.shape[1] * w.shape[2] * w.shape[3] * w.shape[4]
    _conv_blocks(&p)
    packed.row = p.kernel
    packed.packed = Buffer(groups * p.a_bytes, HUGE_PACKED)
    packed.sums = Buffer(groups * p.m_padded * 4)
    packed.a_bytes = p.a_bytes
    cdef char *a = packed.packed.start
    cdef uint32_t *sums = <uint32_t *>packed.sums.start
    blocks = _ceil_div(p.m, p.kernel.mr)
    for task in prange(groups * blocks, nogil=True, schedule="dynamic", chunksize=1, num_threads=n_threads):
        group = task // blocks
        _pack_weights(&p, w_data + group * p.m * p.k, flip, task % blocks * p.kernel.mr, a + group * p.a_bytes,
                      sums + group * p.m_padded)
    return packed


cdef void _conv_plan(ConvProduct *p, const qt_conv *g, Py_ssize_t items, int n_threads) noexcept nogil:
    """Bands whose copy stays in L2 beside the packed B; two tasks per thread if there are several."""
    cdef Py_ssize_t wanted = 2 * n_threads if n_threads > 1 else 1, nr = p.kernel.nr, flat, tasks, axis, line
    p.direct = g.stride[1] == 1 and g.stride[2] == 1
    for axis in range(3):
        if g.pad[axis] or (g.out[axis] - 1) * g.stride[axis] + (g.kernel[axis] - 1) * g.dilation[axis] >= g.size[axis]:
            p.direct = False
    p.band.phases = g.stride[2]
    p.band.lines, p.band.columns = 1, g.out[2]
    qt_band_layout(g, &p.band)
    if p.direct:
        p.band.lines = g.out[1]
    else:
        line = _max(1, g.channels * p.band.bytes)   # of one output line
        if line > COPY:
            p.band.columns = _min(g.out[2], _max(64, g.out[2] * COPY // line))
        flat = g.channels * g.kernel[0] * g.stride[1] * p.band.phases * p.band.pitch   # of each further line
        p.band.lines = _min(g.out[1], 1 + _max(0, COPY - line) // _max(1, flat))
    p.column_blocks = _ceil_div(g.out[2], p.band.columns)
    p.slices = g.out[0]
    tasks = items * p.slices * p.column_blocks
    p.line_blocks = _ceil_div(g.out[1], p.band.lines)
    if tasks * p.line_blocks < wanted:
        p.line_blocks = _min(_ceil_div(wanted, tasks), _ceil_div(g.out[1] * p.band.pitch, 64))
    p.band.lines = _ceil_div(g.out[1], p.line_blocks)   # equal blocks
    p.line_blocks = _ceil_div(g.out[1], p.band.lines)
    tasks *= p.line_blocks
    p.ranges = _min(_ceil_div(wanted, tasks), _ceil_div(p.m, p.kernel.mr))
    p.rows = _round_up(_ceil_div(p.m, p.ranges), p.kernel.mr)
    p.ranges = _ceil_div(p.m, p.rows)
    qt_band_layout(g, &p.band)
    if p.direct:
        p.band.pitch = g.size[2]
        p.band.bytes = 0
    flat = (p.band.lines - 1) * p.band.pitch + p.band.columns
    p.nc = _max(1, _min(256, COPY // _max(1, p.k_padded * p.kernel.b_size)) // nr) * nr
    p.nc = _min(p.nc, _round_up(flat, nr))
    p.width = nr if p.kernel.tile != NULL else p.nc


cdef Py_ssize_t _conv_carve(const ConvProduct *p, const qt_conv *g, char *at, ConvWorkspace *ws) noexcept nogil:
    """Lay a workspace out at ``at``; returns its size. The only place that knows the sizes."""
    cdef char *start = at
    ws.copy = <uint8_t *>at
    at += _round_up(g.channels * p.band.bytes, 64)
    ws.columns = <uint8_t *>at
    at += 0 if p.runs else _round_up(_min(p.kc, p.k_padded) * p.nc, 64)
    ws.b = at
    at += _round_up(p.nc * p.k_padded * p.kernel.b_size, 64)
    ws.colsum = <uint32_t *>at
    at += _round_up(p.nc * 4, 64)
    ws.less = <uint32_t *>at
    at += _round_up(p.nc * 4, 64)
    ws.acc = <uint32_t *>at
    at += _round_up(p.kernel.mr * p.width * 4, 64)
    ws.add = <uint32_t *>at
    at += _round_up(p.kernel.mr * 4, 64)
    ws.segments = <qt_segment *>at
    at += _round_up(p.nc * <Py_ssize_t>sizeof(qt_segment), 64)
    ws.first = <Py_ssize_t *>at
    at += _round_up((p.nc // p.width + 1) * <Py_ssize_t>sizeof(Py_ssize_t), 64)
    return at - start


cdef void _conv_offsets(const ConvProduct *p, const qt_conv *g, Py_ssize_t *at) noexcept nogil:
    """Where the run of each k begins."""
    cdef Py_ssize_t c, td, th, tw, k = 0
    for c in range(g.channels):
        for td in range(g.kernel[0]):
            for th in range(g.kernel[1]):
                for tw in range(g.kernel[2]):
                    if p.direct:
                        at[k] = (((c * g.size[0] + td * g.dilation[0]) * g.size[1] + th * g.dilation[1]) * g.size[2]
                                 + tw * g.dilation[2])
                    else:
                        at[k] = c * p.band.bytes + qt_band_offset(g, &p.band, td, th, tw)
                    k += 1


cdef Py_ssize_t _conv_segments(const qt_conv *g, const qt_band *b, Py_ssize_t columns, Py_ssize_t col, Py_ssize_t cols,
                               qt_segment *segments) noexcept nogil:
    """The runs of real output positions among the flat positions col .. col + cols of a band; returns their number."""
    cdef Py_ssize_t count = 0, f = col, line, start, stop
    cdef Py_ssize_t origin = (b.slice * g.out[1] + b.line) * g.out[2] + b.column
    if b.pitch == g.out[2] and columns == g.out[2]:   # lines follow each other without a gap
        segments[0].from_, segments[0].length, segments[0].to = 0, cols, origin + col
        return 1
    while f < col + cols:
        line = f // b.pitch
        start = line * b.pitch
        stop = _min(col + cols, start + columns)
        if stop > f:
            segments[count].from_ = f - col
            segments[count].length = stop - f
            segments[count].to = origin + line * g.out[2] + f - start
            count += 1
        f = start + b.pitch
    return count


cdef void _conv_pack(const ConvProduct *p, const ConvWorkspace *ws, const uint8_t *source, Py_ssize_t cols,
                     uint8_t flip) noexcept nogil:
    """Pack K x cols of B from the runs of ``source``."""
    cdef Py_ssize_t k0 = 0, kc, real, i
    cdef char *b
    memset(ws.colsum, 0, <size_t>p.nc * 4)
    while k0 < p.k_padded:
        kc = _min(p.kc, p.k_padded - k0)
        real = _min(kc, p.k - k0)
        b = ws.b + k0 * p.nc * p.kernel.b_size
        if p.runs:
            p.ends.pack_runs(source, p.at + k0, cols, real, flip, b, ws.colsum)
        else:
            for i in range(real):
                memcpy(ws.columns + i * p.nc, source + p.at[k0 + i], <size_t>cols)
            p.kernel.pack_b(ws.columns, p.nc, 1, cols, real, flip, b, ws.colsum)
        k0 += kc


cdef void _conv_multiply(const ConvProduct *p, const ConvWorkspace *ws, const char *a, Py_ssize_t row, Py_ssize_t rows,
                         Py_ssize_t col, Py_ssize_t cols) noexcept nogil:
    """acc = the A panel at ``row`` times a tile of columns of the packed B."""
    cdef const qt_gemm_u8s8 *kernel = p.kernel
    cdef Py_ssize_t k0 = 0, kc, j
    cdef qt_tile tile
    if kernel.tile != NULL:
        memset(&tile, 0, sizeof(tile))
        tile.kc, tile.rows, tile.first, tile.acc = p.k_padded, rows, True, ws.acc
        tile.a = a + row * p.k_padded * kernel.a_size
        tile.b = ws.b + col * p.k_padded * kernel.b_size
        kernel.tile(&tile)
        return
    memset(ws.acc, 0, <size_t>(kernel.mr * p.width) * 4)
    while k0 < p.k_padded:
        kc = _min(p.kc, p.k_padded - k0)
        j = 0
        while j < cols:
            kernel.run(kc, a + (k0 * p.m_padded + row * kc) * kernel.a_size,
                       ws.b + (k0 * p.nc + (col + j) * kc) * kernel.b_size, ws.acc + j, p.width)
            j += kernel.nr
        k0 += kc


cdef void _conv_finish(const ConvProduct *p, const ConvWorkspace *ws, const Channels *s, Py_ssize_t channel,
                       Py_ssize_t rows, Py_ssize_t col, char *out, Py_ssize_t out_bytes) noexcept nogil:
    """Corrections, bias, requantization and store of a tile; ``out`` is the first channel's."""
    cdef Py_ssize_t i = 0, n, j, tile = col // p.width, out_ld = out_bytes if s.q != NULL else out_bytes // 4
    cdef uint32_t w_zero
    cdef qt_channels c
    c.q, c.x_scale, c.w_scale, c.multiplier = s.q, s.x_scale, NULL, NULL
    while i < rows:   # channels with one zero point: as a rule all of them
        n = rows - i if s.one_zero else 1
        while i + n < rows and s.w_zero[channel + i + n] == s.w_zero[channel + i]:
            n += 1
        if not s.one_zero:
            w_zero = <uint32_t>(s.w_zero[channel + i] + s.w_sign)
            for j in range(p.width):
                ws.less[col + j] = w_zero * ws.colsum[col + j]
        c.add = ws.add + i
        if s.q != NULL:
            c.w_scale, c.multiplier = s.w_scale + channel + i, s.multiplier + channel + i
        p.ends.finish(&c, n, ws.acc + i * p.width, p.width, ws.less + col, ws.segments + ws.first[tile],
                      ws.first[tile + 1] - ws.first[tile], out + i * out_bytes, out_ld)
        i += n


cdef void _conv_task(const ConvProduct *p, const qt_conv *g, const Channels *s, char *base, Py_ssize_t group,
                     Py_ssize_t task, const uint8_t *x, char *out, Py_ssize_t out_bytes) noexcept nogil:
    """One band and a range of channels of one group of one image; ``x`` and ``out`` are the group's."""
    cdef ConvWorkspace ws
    cdef qt_band band = p.band
    cdef Py_ssize_t lines, columns, flat, block = 0, cols, col, row, rows, c, i, channel, tile
    cdef Py_ssize_t plane = g.size[1] * g.size[2], first = task % p.ranges * p.rows
    cdef const uint8_t *source
    cdef const char *a = p.a + group * p.a_bytes
    cdef const uint32_t *rowsum = p.rowsum + group * p.m_padded
    cdef uint32_t w_zero, x_zero = <uint32_t>s.x_zero - (0 if s.x_sign else 128)
    _conv_carve(p, g, base, &ws)
    task = task // p.ranges
    band.column = task % p.column_blocks * band.columns
    task = task // p.column_blocks
    band.line = task % p.line_blocks * band.lines
    band.slice = task // p.line_blocks
    lines, columns = _min(band.lines, g.out[1] - band.line), _min(band.columns, g.out[2] - band.column)
    flat = (lines - 1) * band.pitch + columns
    if p.direct:
        source = x + band.slice * g.stride[0] * plane + band.line * g.size[2] + band.column
    else:
        for c in range(g.channels):
            qt_band_fill(g, &band, x + c * g.size[0] * plane, ws.copy + c * band.bytes)
        source = ws.copy
    if p.kernel.begin != NULL:
        p.kernel.begin()
    while block < flat:
        cols = _min(p.nc, flat - block)
        _conv_pack(p, &ws, source + block, cols, 0 if s.x_sign else 0x80)
        if s.one_zero:
            for i in range(cols):
                ws.less[i] = <uint32_t>(s.w_zero[0] + s.w_sign) * ws.colsum[i]
        ws.first[0] = tile = col = 0
        while col < cols:
            ws.first[tile + 1] = ws.first[tile] + _conv_segments(
                g, &band, columns, block + col, _min(p.width, cols - col), ws.segments + ws.first[tile])
            tile += 1
            col += p.width
        row = first
        while row < _min(first + p.rows, p.m):
            rows = _min(p.kernel.mr, p.m - row)
            channel = group * p.m + row
            for i in range(rows):
                w_zero = <uint32_t>(s.w_zero[channel + i] + s.w_sign)
                ws.add[i] = x_zero * (<uint32_t>p.k * w_zero - rowsum[row + i])
                if s.bias != NULL:
                    ws.add[i] += <uint32_t>s.bias[channel + i]
            col = 0
            while col < cols:
                _conv_multiply(p, &ws, a, row, rows, col, _min(p.width, cols - col))
                _conv_finish(p, &ws, s, channel, rows, col, out + row * out_bytes, out_bytes)
                col += p.width
            row += rows
        block += cols
    if p.kernel.end != NULL:
        p.kernel.end()


cdef struct Depthwise:
    # The direct kernel of one convolution.
    const qt_depthwise *row
    qt_band band             # the layout; all bands share it
    Py_ssize_t pitch         # of the output positions
    Py_ssize_t n             # positions of a band
    Py_ssize_t lines         # of the kernel
    Py_ssize_t groups        # of weights of a line
    Py_ssize_t multiplier    # channels out per channel in
    const Py_ssize_t *line   # where each line of the kernel begins in the copy
    Py_ssize_t together      # channels whose copies are made before the first is read
    Py_ssize_t copy_size     # elements of a copy, with the slack that a kernel may read


cdef struct DepthwiseWorkspace:
    uint8_t *copy
    int16_t *wide
    uint32_t *weights
    uint32_t *ones
    uint32_t *acc
    uint8_t *codes


cdef void _depthwise_plan(Depthwise *p, const qt_conv *g) noexcept nogil:
    """Bands whose copy stays in L1."""
    cdef Py_ssize_t ahead
    p.row = qt_fit_depthwise(_depthwise, g.stride[2], g.dilation[2], g.kernel[2])
    p.lines = g.kernel[0] * g.kernel[1]
    p.groups = _ceil_div(g.kernel[2], p.row.kr)
    p.band.phases = 1
    p.band.columns = _min(g.out[2], 4096)
    p.band.lines = 1
    qt_band_layout(g, &p.band)
    ahead = p.band.rows - 1
    p.band.lines = _min(g.out[1], _max(8, LINE // (g.kernel[0] * g.stride[1] * p.band.pitch) - ahead))
    qt_band_layout(g, &p.band)
    p.pitch = p.band.pitch // g.stride[2]
    p.n = _round_up((p.band.lines - 1) * p.pitch + p.band.columns, QT_DEPTHWISE_STEP)
    # A wide load waits until the narrow stores under it have left the core: so not straight after the copy
    p.together = 1
    if g.out[0] == 1 and p.band.lines == g.out[1] and p.band.columns == g.out[2]:
        p.together = _max(1, _min(8, LINE // p.band.bytes))
    p.copy_size = _round_up(p.band.bytes + QT_DEPTHWISE_STEP * g.stride[2] + g.kernel[2] + 128, 64)


cdef Py_ssize_t _depthwise_carve(const Depthwise *p, const qt_conv *g, bint codes, char *at,
                                 DepthwiseWorkspace *ws) noexcept nogil:
    """Lay a workspace out at ``at``; returns its size. The only place that knows the sizes."""
    cdef char *start = at
    ws.copy = <uint8_t *>at
    at += p.together * p.copy_size
    ws.wide = <int16_t *>at
    at += p.together * p.copy_size * 2 if p.row.kr == 2 else 0
    ws.weights = <uint32_t *>at
    at += _round_up(p.lines * p.groups * 4, 64)
    ws.ones = <uint32_t *>at
    at += _round_up(_ceil_div(g.kernel[2], 4) * 4, 64)
    ws.acc = <uint32_t *>at
    ws.codes = <uint8_t *>at
    at += _round_up(p.n * (1 if codes else 4) + 16, 64)   # qt_copy_lines reads beyond
    return at - start


cdef void _depthwise_task(const Depthwise *p, const qt_conv *g, const Channels *s, char *base, Py_ssize_t item,
                          Py_ssize_t items, Py_ssize_t groups, const uint8_t *x, const uint8_t *w,
                          char *out) noexcept nogil:
    """The output channels that come from ``items`` input channels, counted over all images, from ``item`` on."""
    cdef DepthwiseWorkspace ws
    cdef qt_depthwise_line t
    cdef qt_band band = p.band
    cdef Py_ssize_t width = 1 if s.q != NULL else 4, m, i, j, lines, columns, channel, at
    cdef Py_ssize_t blocks = _ceil_div(g.out[1], band.lines), across = _ceil_div(g.out[2], band.columns)
    cdef Py_ssize_t positions = g.out[0] * g.out[1] * g.out[2], x_item = g.size[0] * g.size[1] * g.size[2]
    cdef uint8_t *copy
    _depthwise_carve(p, g, s.q != NULL, base, &ws)
    t.line, t.lines, t.taps = p.line, p.lines, g.kernel[2]
    t.stride, t.dilation = g.stride[2], g.dilation[2]
    t.weights, t.ones, t.acc, t.codes = ws.weights, ws.ones, ws.acc, ws.codes
    t.q, t.x_scale = s.q, s.x_scale
    qt_depthwise_ones(t.taps, ws.ones)
    for i in range(g.out[0] * blocks * across):
        band.slice = i // across // blocks
        band.line = i // across % blocks * band.lines
        band.column = i % across * band.columns
        lines, columns = _min(band.lines, g.out[1] - band.line), _min(band.columns, g.out[2] - band.column)
        at = (band.slice * g.out[1] + band.line) * g.out[2] + band.column
        for j in range(items):
            copy = ws.copy + j * p.copy_size
            if p.row.kr == 4 and qt_depthwise_fill(p.row, g, &band, x + (item + j) * x_item, s.x_sign, copy):
                continue
            qt_band_fill(g, &band, x + (item + j) * x_item, copy)
            if p.row.kr == 2:
                qt_depthwise_widen(copy, band.bytes, s.x_sign, s.x_zero, ws.wide + j * p.copy_size)
            elif s.x_sign:
                qt_depthwise_flip(copy, band.bytes)
        t.n = _round_up((lines - 1) * p.pitch + columns, QT_DEPTHWISE_STEP)
        for j in range(items):
            t.copy = ws.wide + j * p.copy_size if p.row.kr == 2 else <const void *>(ws.copy + j * p.copy_size)
            for m in range(p.multiplier):
                channel = (item + j) % groups * p.multiplier + m
                t.init = qt_depthwise_weights(
                    w + channel * p.lines * g.kernel[2], p.lines, g.kernel[2], p.row.kr, s.x_sign, s.w_sign, s.x_zero,
                    s.w_zero[channel], <uint32_t>s.bias[channel] if s.bias != NULL else 0, ws.weights, &t.w_zero)
                if s.q != NULL:
                    t.w_scale, t.multiplier = s.w_scale[channel], s.multiplier[channel]
                p.row.run(&t)
                qt_copy_lines(ws.codes, p.pitch * width,
                              <uint8_t *>out + (((item + j) * p.multiplier + m) * positions + at) * width,
                              g.out[2] * width, lines, columns * width)


def conv(
    const uint8_t[:, :, :, :, ::1] x not None,  # IN  (batch, C, D, H, W)
    const uint8_t[:, :, :, :, ::1] w not None,  # IN  (channels out, C / groups, kD, kH, kW)
    PackedWeights packed,                       # IN  of the same w, or None
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
    cdef ConvProduct p
    cdef Depthwise d
    cdef qt_conv g
    cdef Channels s
    cdef qt_requantize q = _requantize(y_scale, y_zero, y_signed, literal)
    cdef bint codes = out8 is not None
    cdef Py_ssize_t batch = x.shape[0], channels = w.shape[0], tasks, stride, task, item, axis, positions
    cdef ConvWorkspace probe
    cdef DepthwiseWorkspace depthwise_probe
    cdef char *base
    memset(&p, 0, sizeof(p))
    memset(&d, 0, sizeof(d))
    for axis in range(3):
        g.size[axis] = x.shape[2 + axis]
        g.kernel[axis] = w.shape[2 + axis]
        g.out[axis] = out8.shape[2 + axis] if codes else out32.shape[2 + axis]
        g.stride[axis] = strides[axis]
        g.pad[axis] = pads_begin[axis]
        g.dilation[axis] = dilations[axis]
    g.channels = w.shape[1]
    g.outside = <uint8_t>(x_zero & 0xFF)
    positions = g.out[0] * g.out[1] * g.out[2]
    if batch == 0 or channels == 0 or positions == 0:
        return
    cdef const uint8_t *x_data = &x[0, 0, 0, 0, 0] if x.size else NULL
    cdef const uint8_t *w_data = &w[0, 0, 0, 0, 0] if w.size else NULL
    cdef Py_ssize_t x_item = g.channels * g.size[0] * g.size[1] * g.size[2]
    cdef Py_ssize_t out_bytes = positions * (1 if codes else 4)   # of a channel
    cdef char *out = <char *>&out8[0, 0, 0, 0, 0] if codes else <char *>&out32[0, 0, 0, 0, 0]
    multipliers = Buffer(channels * 4)
    s.w_zero = &w_zero[0]
    s.bias = &bias[0] if bias is not None else NULL
    s.w_scale, s.multiplier, s.q, s.x_scale = NULL, NULL, NULL, 0
    s.x_zero, s.x_sign, s.w_sign = x_zero, 128 if x_signed else 0, 128 if w_signed else 0
    s.one_zero = True
    for item in range(channels):
        s.one_zero = s.one_zero and w_zero[item] == w_zero[0]
    if codes:
        s.q, s.x_scale, s.w_scale = &q, x_scale[0], &w_scale[0]
        s.multiplier = <float *>(<Buffer>multipliers).start
        qt_multipliers(s.x_scale, s.w_scale, y_scale, channels, <float *>(<Buffer>multipliers).start)
    p.m = channels // groups
    p.k = g.channels * g.kernel[0] * g.kernel[1] * g.kernel[2]
    if g.channels == 1 and p.k:
        d.multiplier = p.m
        _depthwise_plan(&d, &g)
        offsets = Buffer(d.lines * <Py_ssize_t>sizeof(Py_ssize_t))
        d.line = <Py_ssize_t *>(<Buffer>offsets).start
        for axis in range(d.lines):
            (<Py_ssize_t *>(<Buffer>offsets).start)[axis] = qt_band_offset(
                &g, &d.band, axis // g.kernel[1], axis % g.kernel[1], 0)
        tasks = _ceil_div(batch * groups, d.together)
        n_threads = <int>_min(n_threads, tasks)
        stride = _depthwise_carve(&d, &g, codes, NULL, &depthwise_probe)
        scratch = Buffer(stride * n_threads)
        base = (<Buffer>scratch).start
        memset(base, 0, <size_t>(stride * n_threads))   # the slack is read, if for nothing
        with nogil, parallel(num_threads=n_threads):
            for task in prange(tasks, schedule="dynamic", chunksize=1):
                _depthwise_task(&d, &g, &s, base + threadid() * stride, task * d.together,
                                _min(d.together, batch * groups - task * d.together), groups, x_data, w_data, out)
        return
    if packed is None:
        packed = pack_conv(w, groups, w_signed, n_threads)
    p.kernel = packed.row
    p.a, p.a_bytes, p.rowsum = packed.packed.start, packed.a_bytes, <uint32_t *>packed.sums.start
    _conv_blocks(&p)
    p.ends = _conv_ends
    p.runs = qt_packs_runs(p.ends, p.kernel)
    _conv_plan(&p, &g, batch * groups, n_threads)
    offsets = Buffer(p.k * <Py_ssize_t>sizeof(Py_ssize_t))
    p.at = <Py_ssize_t *>(<Buffer>offsets).start
    _conv_offsets(&p, &g, <Py_ssize_t *>(<Buffer>offsets).start)
    tasks = p.slices * p.line_blocks * p.column_blocks * p.ranges
    n_threads = <int>_min(n_threads, batch * groups * tasks)
    stride = _conv_carve(&p, &g, NULL, &probe)
    scratch = Buffer(stride * n_threads)
    base = (<Buffer>scratch).start
    with nogil, parallel(num_threads=n_threads):
        for task in prange(batch * groups * tasks, schedule="dynamic", chunksize=1):
            item = task // tasks
            _conv_task(&p, &g, &s, base + threadid() * stride, item % groups, task % tasks, x_data + item * x_item,
                       out + item * p.m * out_bytes, out_bytes)


# ------------------------------------------------------------------------------------------------- dynamic quantization

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


# --------------------------------------------------------------------------------------------------- saturating pairs
#
# Products as a processor without VNNI computes them (saturating.h). Threads share the panels of columns: counts are
# per column, so each is written by one thread.

cdef inline void _saturating_task(
    const uint8_t *a, Py_ssize_t m, Py_ssize_t k, const char *b, Py_ssize_t n, Py_ssize_t first, char *panel,
    uint8_t *can, int32_t *out, int64_t *counts,
) noexcept nogil:
    cdef int64_t found[QT_SATURATING_COLUMNS]
    cdef Py_ssize_t cols = _min(QT_SATURATING_COLUMNS, n - first)
    memset(found, 0, sizeof(found))
    qt_saturating_pack(b + first, n, k, cols, panel, can)
    _saturating.run(a, k, m, k, panel, can, NULL if out == NULL else out + first, n, cols,
                    NULL if counts == NULL else found)
    if counts != NULL:
        memcpy(counts + first, found, <size_t>cols * sizeof(int64_t))


def saturating(
    const uint8_t[:, ::1] a not None,    # IN  (M, K)
    const uint8_t[:, ::1] b not None,    # IN  (K, N), the bytes of int8
    int32_t[:, ::1] out,                 # OUT (M, N), or None
    int64_t[::1] counts,                 # OUT (N), or None: pairs that saturate
    int n_threads,
):
    """The sums of pairs saturated to int16, modulo 2^32, and how many pairs of each column did saturate."""
    cdef Py_ssize_t m = a.shape[0], k = a.shape[1], n = b.shape[1], quads = _ceil_div(k, 4), panels, t, stride
    if m == 0 or n == 0 or k == 0:
        if out is not None:
            out[:, :] = 0
        if counts is not None:
            counts[:] = 0
        return
    panels = _ceil_div(n, QT_SATURATING_COLUMNS)
    n_threads = <int>_min(n_threads, panels)
    stride = _round_up(quads * (4 * QT_SATURATING_COLUMNS + 1), 64)
    scratch = Buffer(stride * n_threads)
    cdef char *base = (<Buffer>scratch).start
    cdef char *panel
    cdef const uint8_t *a_data = &a[0, 0]
    cdef const char *b_data = <const char *>&b[0, 0]
    cdef int32_t *out_data = NULL if out is None else &out[0, 0]
    cdef int64_t *counts_data = NULL if counts is None else &counts[0]
    with nogil, parallel(num_threads=n_threads):
        for t in prange(panels, schedule="dynamic", chunksize=1):
            panel = base + threadid() * stride
            _saturating_task(a_data, m, k, b_data, n, t * QT_SATURATING_COLUMNS, panel,
                             <uint8_t *>panel + quads * 4 * QT_SATURATING_COLUMNS, out_data, counts_data)


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
