/*
 * codes.h: the exit codes of the program, which are the codes of the library. include/plimsoll.h
 * repeats them for users; a file that includes both includes that first, and the compiler compares.
 */
#pragma once

#define CODES(X) X(PL_OK, 0) X(PL_FAIL, 1) X(PL_USAGE, 2) X(PL_NOFIT, 3) X(PL_STOPPED, 4)
#ifdef PLIMSOLL_H
#define CODE(name, number) _Static_assert(name == number, #name " is another number in plimsoll.h");
CODES(CODE)
#else
#define CODE(name, number) name = number,
enum { CODES(CODE) };
#endif
#undef CODE
