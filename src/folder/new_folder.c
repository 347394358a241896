/*
 * new_folder.c: see new_folder.h.
 */
#include "folder/new_folder.h"

#include "io/file.h"

enum { PATH_MOST = 4096 };

int new_folder_check(const char *path, struct error *e)
{
    struct names l = {0};
    if (!file_exists(path)) return PL_OK;
    if (!dir_exists(path)) return error_set(e, PL_USAGE, "%s is a file; expected the name of a new folder", path);
    int rc = dir_list(path, &l, e);
    if (!rc && l.n) rc = error_set(e, PL_USAGE, "%s is not empty: give another folder, or remove it first", path);
    names_free(&l);
    return rc;
}

int new_folder_fill(struct temporary *t, const char *path, fill_folder *fill, void *of, struct error *e)
{
    char parent[PATH_MOST];
    TRY(path_dir(path, parent, sizeof parent, e));
    TRY(dir_make(parent, e));
    TRY(temporary_folder(t, path, e));
    int rc = fill(of, t->path, e);
    if (rc) temporary_drop(t);
    return rc;
}

int new_folder_write(const char *path, fill_folder *fill, void *of, struct error *e)
{
    struct temporary t;
    TRY(new_folder_fill(&t, path, fill, of, e));
    return temporary_keep(&t, path, true, e);
}
