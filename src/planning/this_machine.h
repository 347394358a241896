/*
 * this_machine.h: what this build can use, and the machine that it runs on.
 */
#pragma once

#include <stdbool.h>

/* Print the version and the libraries, and this machine. */
void environment_print_version(bool json);
void environment_print_machine(bool json);
