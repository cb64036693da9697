/* Memory of a call, on huge pages where Linux has them: a packed operand is walked in strides that exhaust the TLB. */
#ifndef QT_WORKSPACE_H
#define QT_WORKSPACE_H

#if defined(__linux__) && !defined(_GNU_SOURCE)
#define _GNU_SOURCE /* MADV_HUGEPAGE; Python.h defines it too */
#endif

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#if defined(__linux__)
#include <sys/mman.h>
#endif

/* NULL if there is no memory. Freed with free(). */
static void *qt_allocate(size_t size) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    enum { HUGE_PAGE = 1 << 21 };
    if (size >= HUGE_PAGE / 2) {
        void *memory = NULL;
        size = (size + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
        if (posix_memalign(&memory, HUGE_PAGE, size)) return NULL;
        (void)madvise(memory, size, MADV_HUGEPAGE); /* advice: without it the pages are small */
        return memory;
    }
#endif
    return malloc(size);
}

#endif
