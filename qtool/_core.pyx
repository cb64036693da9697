# cython: language_level=3
"""The compiled core of qtool: loops over typed memoryviews, nothing else."""

# ---------------------------------------------------------------------------------------------------- threads and ISA

import os

from cython.parallel cimport parallel, prange, threadid
from libc.stdint cimport int32_t, uint8_t, uint32_t, uintptr_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset


cdef extern from "_kernels/cpu.h" nogil:
    ctypedef int qt_isa
    ctypedef struct qt_named_mask:
        const char *name
        uint32_t mask
    const qt_named_mask *QT_CPU_FEATURES
    const qt_named_mask *QT_ISAS
    const int QT_CPU_FEATURE_COUNT
    const int QT_ISA_COUNT
    uint32_t qt_detect_cpu()
    int qt_openmp()


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
    const qt_gemm_u8s8 **QT_GEMM_U8S8
    const int QT_GEMM_U8S8_COUNT
    const qt_gemm_u8s8 *qt_choose_gemm_u8s8(uint32_t, qt_isa)


cdef uint32_t _features = qt_detect_cpu()
cdef str _cap = "auto"
cdef const qt_gemm_u8s8 *_gemm = NULL  # never NULL after import


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
    """(features, supported, cap, rows, kernel, its ISA): what isa_info() puts into words."""
    features = tuple([
        QT_CPU_FEATURES[i].name.decode() for i in range(QT_CPU_FEATURE_COUNT) if _features & QT_CPU_FEATURES[i].mask
    ])
    rows = tuple([QT_GEMM_U8S8[i].name.decode() for i in range(QT_GEMM_U8S8_COUNT)])
    return features, supported_isas(), _cap, rows, _gemm.name.decode(), QT_ISAS[_gemm.isa].name.decode()


def set_isa(str name):
    """Cap dispatch at ``name`` and return the name of the chosen kernel; 'auto' lifts the cap.

    Not thread-safe: it changes which kernel the next call takes.

    Raises:
        ValueError: If there is no such name.
        RuntimeError: If this processor does not have it.
    """
    global _cap, _gemm
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
    _gemm = qt_choose_gemm_u8s8(_features, <qt_isa>cap)
    _cap = name
    return _gemm.name.decode()


set_isa(os.environ.get("QTOOL_ISA") or "auto")


cdef class Buffer:
    """Memory for one call, aligned to a cache line. Allocated before a parallel region: nothing inside may fail."""
    cdef void *memory
    cdef char *start

    def __cinit__(self, Py_ssize_t size):
        self.memory = malloc(<size_t>(size + 64))
        if self.memory == NULL:
            raise MemoryError(f"Cannot allocate {size} bytes for a kernel.")
        self.start = <char *>((<uintptr_t>self.memory + 63) & ~<uintptr_t>63)

    def __dealloc__(self):
        free(self.memory)


cdef inline Py_ssize_t _min(Py_ssize_t a, Py_ssize_t b) noexcept nogil:
    return a if a < b else b


cdef inline Py_ssize_t _max(Py_ssize_t a, Py_ssize_t b) noexcept nogil:
    return a if a > b else b


cdef inline Py_ssize_t _ceil_div(Py_ssize_t a, Py_ssize_t b) noexcept nogil:
    return (a + b - 1) // b


cdef inline Py_ssize_t _round_up(Py_ssize_t a, Py_ssize_t b) noexcept nogil:
    return _ceil_div(a, b) * b


# ------------------------------------------------------------------------------------------------- elementwise kernels

# ------------------------------------------------------------------------------------------------------ integer matmul

# Products: pack all of B once; then one task = a block of rows of A (packed by the task) times a range of columns.
#
#   for each task:  pack A block (mc x K)           -> L2
#     for each nc columns:  acc = 0
#       for each kc of K, each B panel, each A panel:  micro-kernel    (B panel and A panel of kc stay in L1)
#       correct zero points, requantize, write      (the accumulators never leave the cache)
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


cdef extern from "_kernels/dynamic_quantize.h" nogil:
    void qt_widen_range(const float *, Py_ssize_t, float *, float *)
    void qt_quantize_u8(const float *, Py_ssize_t, float, int32_t, uint8_t *)
    int32_t qt_round_clamped(float, float, float)


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


cdef Py_ssize_t _carve(const Product *p, bint conv, char *at, Workspace *ws) noexcept nogil:
    """Lay a workspace out at ``at``; returns its size. The only place that knows the sizes."""
    cdef char *start = at
    ws.a = at
    at += _round_up(p.mc * p.k_padded * p.kernel.a_size, 64)
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


cdef void _plan(Product *p, Py_ssize_t items, int n_threads) noexcept nogil:
    """Choose blocks: packed A in about 256 KiB, B tiles in the rest of L2, four tasks per thread if possible."""
    cdef Py_ssize_t mr = p.kernel.mr, nr = p.kernel.nr, wanted = 4 * n_threads if n_threads > 1 else 1
    p.k_padded = _round_up(p.k, p.kernel.kr)
    p.n_padded = _round_up(p.n, nr)
    p.kc = _min(_max(1024 // p.kernel.kr * p.kernel.kr, p.kernel.kr), p.kernel.max_kc)
    p.nc = _min(_round_up(128, nr), p.n_padded)
    p.mc = _max(16, _min(64, 262144 // _max(1, p.k_padded * p.kernel.a_size)))
    p.mc = _round_up(_min(p.mc, p.m), mr)
    p.row_blocks = _ceil_div(p.m, p.mc)
    p.col_ranges = _min(_ceil_div(wanted, _max(1, items * p.row_blocks)), _ceil_div(p.n, 4 * nr))
    p.cols = _round_up(_ceil_div(p.n, p.col_ranges), nr)
    p.col_ranges = _ceil_div(p.n, p.cols)
    p.b_bytes = _round_up(p.n_padded * p.k_padded * p.kernel.b_size, 64)


cdef void _pack_b(const Product *p, Py_ssize_t item, Py_ssize_t col, const uint8_t *b, Py_ssize_t k_stride,
                  Py_ssize_t col_stride) noexcept nogil:
    """Pack nc columns of one item from ``col`` on; ``b`` is the item's first element."""
    cdef Py_ssize_t k0 = 0, kc, cols = _min(p.nc, p.n - col)
    cdef uint32_t *colsum = p.colsum + item * p.n_padded + col
    memset(colsum, 0, <size_t>_min(p.nc, p.n_padded - col) * 4)
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


cdef qt_requantize _requantize(float y_scale, int y_zero, bint y_signed, bint literal) noexcept:
    cdef qt_requantize q
    q.form = QT_FORM_LITERAL if literal else QT_FORM_MULTIPLIER
    q.y_scale = y_scale
    q.y_zero = y_zero
    q.lo = (-128 if y_signed else 0) - y_zero
    q.hi = (127 if y_signed else 255) - y_zero
    return q


def matmul(
    const uint8_t[:, :, :] a not None,          # IN  (items of a, M, K), any strides
    const uint8_t[:, :, :] b not None,          # IN  (items of b, K, N), any strides
    const Py_ssize_t[::1] a_item not None,      # IN  (batch,) index into a
    const Py_ssize_t[::1] b_item not None,      # IN  (batch,) index into b
    bint a_signed,
    bint b_signed,
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
    """Equation (3) into ``out32``, or (3) and (4) into ``out8``. Shapes are the caller's duty."""
    cdef Product p
    cdef qt_requantize q = _requantize(y_scale, y_zero, y_signed, literal)
    cdef bint codes = out8 is not None
    cdef Py_ssize_t batch = a_item.shape[0], b_items = b.shape[0], tasks, col_groups, stride, task, group
    cdef Py_ssize_t rest, r
    cdef Workspace probe
    memset(&p, 0, sizeof(p))
    p.kernel = _gemm
    p.m, p.k, p.n = a.shape[1], a.shape[2], b.shape[2]
    if batch == 0 or p.m == 0 or p.n == 0:
        return
    p.a_flip = 0x80 if a_signed else 0
    p.b_flip = 0 if b_signed else 0x80
    p.requantize = &q if codes else NULL
    _plan(&p, batch, n_threads)
    packed = Buffer(b_items * p.b_bytes)
    sums = Buffer(b_items * p.n_padded * 4)
    p.b_packed = (<Buffer>packed).start
    p.colsum = <uint32_t *>(<Buffer>sums).start
    tasks = batch * p.row_blocks * p.col_ranges
    n_threads = <int>_min(n_threads, _max(tasks, b_items))
    stride = _carve(&p, False, NULL, &probe)
    scratch = Buffer(stride * n_threads)
    cdef char *base = (<Buffer>scratch).start
    cdef char *out = <char *>&out8[0, 0, 0] if codes else <char *>&out32[0, 0, 0]
    cdef const uint8_t *a_data = &a[0, 0, 0] if p.k else NULL   # without K there is no first element, nor a read
    cdef const uint8_t *b_data = &b[0, 0, 0] if p.k else NULL
    cdef Py_ssize_t out_bytes = p.m * p.n * (1 if codes else 4)
    col_groups = _ceil_div(p.n, p.nc)
    for group in prange(b_items * col_groups, nogil=True, schedule="dynamic", chunksize=1, num_threads=n_threads):
        _pack_b(&p, group // col_groups, group % col_groups * p.nc, b_data + group // col_groups * b.strides[0],
                b.strides[1], b.strides[2])
    with nogil, parallel(num_threads=n_threads):
        for task in prange(tasks, schedule="dynamic", chunksize=1):
            rest = task // p.col_ranges
            r = rest // p.row_blocks
            _matmul_task(
                &p, base + threadid() * stride,
                a_data + a_item[r] * a.strides[0], a.strides[1], a.strides[2], b_item[r],
                rest % p.row_blocks, task % p.col_ranges,
                &a_zero[r, 0], a_zero.strides[1] // 4, &b_zero[r, 0], b_zero.strides[1] // 4,
                &a_scale[r, 0] if codes else NULL, a_scale.strides[1] // 4 if codes else 0,
                &b_scale[r, 0] if codes else NULL, b_scale.strides[1] // 4 if codes else 0,
                out + r * out_bytes)


cdef void _matmul_task(
    const Product *p, char *base, const uint8_t *a, Py_ssize_t row_stride, Py_ssize_t k_stride, Py_ssize_t b_item,
    Py_ssize_t row_block, Py_ssize_t col_range, const int32_t *a_zero, Py_ssize_t a_zero_step, const int32_t *b_zero,
    Py_ssize_t b_zero_step, const float *a_scale, Py_ssize_t a_scale_step, const float *b_scale,
    Py_ssize_t b_scale_step, char *out,
) noexcept nogil:
    cdef Workspace ws
    cdef Sides s
    cdef Py_ssize_t row = row_block * p.mc, rows = _min(p.mc, p.m - row), col = col_range * p.cols
    _carve(p, False, base, &ws)
    s.a_zero, s.a_zero_step, s.b_zero, s.b_zero_step = a_zero, a_zero_step, b_zero, b_zero_step
    s.a_scale, s.a_scale_step, s.b_scale, s.b_scale_step = a_scale, a_scale_step, b_scale, b_scale_step
    s.bias = NULL
    _pack_a(p, &ws, a + row * row_stride, row_stride, k_stride, rows)
    _multiply(p, &ws, &s, b_item, row, rows, col, _min(col + p.cols, p.n), out)


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
        _pack_b(&p, group // col_groups, group % col_groups * p.nc, w_data + group // col_groups * p.n * p.k, 1, p.k)
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
    n_threads = <int>_max(1, _min(n_threads, n // 64))
    share = _round_up(_ceil_div(n, n_threads), 64)
    ranges = Buffer(n_threads * 64)   # a cache line per thread
    cdef char *base = (<Buffer>ranges).start
    cdef const float *x_data = &x[0] if n else NULL
    cdef uint8_t *y_data = &y[0] if n else NULL
    memset(base, 0, <size_t>n_threads * 64)
    for t in prange(n_threads, nogil=True, schedule="static", num_threads=n_threads):
        qt_widen_range(x_data + _min(t * share, n), _max(0, _min(share, n - t * share)), <float *>(base + t * 64),
                       <float *>(base + t * 64 + 4))
    for t in range(n_threads):
        lo = min(lo, (<float *>(base + t * 64))[0])
        hi = max(hi, (<float *>(base + t * 64 + 4))[0])
    scale = (hi - lo) / <float>255
    if scale == 0:
        scale = 1
    zero = qt_round_clamped(-lo / scale, 0, 255)
    for t in prange(n_threads, nogil=True, schedule="static", num_threads=n_threads):
        qt_quantize_u8(x_data + _min(t * share, n), _max(0, _min(share, n - t * share)), scale, zero,
                       y_data + _min(t * share, n))
    return scale, zero
