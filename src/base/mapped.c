/*
 * mapped.c: see mapped.h.
 *
 * The handler of SIGBUS runs on the thread that touched the page. It only walks the list of open
 * maps and calls mmap, which is one system call. The lock of the list is held only by code that
 * touches no map, so the handler never waits for its own thread.
 */
#include "base/mapped.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

static struct mapped *open_maps;
static atomic_flag lock = ATOMIC_FLAG_INIT;
static struct sigaction previous; /* the action before ours, for faults that are not in a map */
static uintptr_t page_bytes;

static void lock_maps(void)
{
    while (atomic_flag_test_and_set_explicit(&lock, memory_order_acquire)) {}
}

static void unlock_maps(void) { atomic_flag_clear_explicit(&lock, memory_order_release); }

/* Marks the map of an address. Returns false if the address is in none. */
static bool mark_failed(uintptr_t address)
{
    bool found = false;
    lock_maps();
    for (struct mapped *m = open_maps; m && !found; m = m->next)
        if (address - (uintptr_t)m->at < m->bytes) atomic_store(&m->failed, true), found = true;
    unlock_maps();
    return found;
}

static void pass_on(int number, siginfo_t *info, void *context)
{
    if (previous.sa_flags & SA_SIGINFO) previous.sa_sigaction(number, info, context);
    else if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) previous.sa_handler(number);
    else sigaction(number, &previous, NULL); /* the access is repeated, and ends the process */
}

static void replace_page(int number, siginfo_t *info, void *context)
{
    const int code = errno;
    const uintptr_t address = (uintptr_t)info->si_addr, page = address / page_bytes * page_bytes;
    const bool replaced = mark_failed(address) && mmap((void *)page, page_bytes, PROT_READ | PROT_WRITE,
                                                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED;
    if (!replaced) pass_on(number, info, context);
    errno = code;
}

static void install(void)
{
    struct sigaction act = {.sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK};
    page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
    act.sa_sigaction = replace_page;
    sigemptyset(&act.sa_mask);
    CHECK(sigaction(SIGBUS, &act, &previous) == 0, "SIGBUS");
}

int mapped_open(struct mapped *m, int fd, size_t bytes, int protection, int flags)
{
    static pthread_once_t installed = PTHREAD_ONCE_INIT;
    pthread_once(&installed, install);
    void *at = mmap(NULL, bytes, protection, flags, fd, 0);
    m->at = NULL;
    if (at == MAP_FAILED) return -1;
    m->at = at;
    m->bytes = bytes;
    atomic_store(&m->failed, false);
    lock_maps();
    m->next = open_maps;
    open_maps = m;
    unlock_maps();
    return 0;
}

bool mapped_failed(const struct mapped *m) { return atomic_load(&m->failed); }

int mapped_check(const struct mapped *m, const char *path, struct error *e)
{
    if (!mapped_failed(m)) return PL_OK;
    return error_set(e, PL_FAIL,
                     "%s became shorter while it was read, or its disk failed; replace a file that is in use by "
                     "renaming a new one to its name, not by writing to it",
                     path);
}

void mapped_close(struct mapped *m)
{
    if (!m->at) return;
    lock_maps();
    struct mapped **at = &open_maps;
    while (*at != m) at = &(*at)->next;
    *at = m->next;
    unlock_maps();
    munmap(m->at, m->bytes);
    m->at = NULL;
}
