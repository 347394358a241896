/*
 * environment.h: prints what this build can use (`plimsoll --version`) and the machine (`plimsoll
 * doctor` without a run file).
 */
#ifndef CLI_ENVIRONMENT_H
#define CLI_ENVIRONMENT_H

#include <stdbool.h>

void print_version(bool json);
void print_machine(bool json);

#endif
