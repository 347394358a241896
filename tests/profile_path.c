/* profile_path.c THREADS: prints the path of this machine's profile. */

#include "cost/profile.h"

int main(int argc, char **argv)
{
    char path[4200];
    if (argc != 2 || !profile_path(atoi(argv[1]), path, sizeof path)) return 1;
    puts(path);
    return 0;
}
