/* Memory on huge pages where Linux has them: a packed operand is walked in strides that exhaust the TLB, and small pages lie
 * in the sets of L2 as chance will have it: a block of A that should fill a third of it drives itself out (4096x4096x4096
 * on AMX: a tenth of the time). */
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

/* At least `huge` bytes come on huge pages: those of a call may take more than they need, those that are kept for long may
 * not. NULL if there is no memory. Freed with free(). */
static void *qt_allocate(size_t size, size_t huge) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    enum { HUGE_PAGE = 1 << 21 };
    if (size >= huge) {
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
