# Plimsoll. `make` leaves build/plimsoll.
#
#   make test     install what is missing, build, run every test (PARTS='unit golden': some)
#   make demo     the same, then a small training run: planned, killed, resumed
#   make asan     the tests under the address and undefined-behaviour sanitizers
#   make fuzz     the parsers under libFuzzer, FUZZ_SECONDS each (needs clang)
#   make bench    kernels against the machine's peak
#   make docs     what is generated in docs/, again
#   make deps     only install what is missing
#   make clean

ifeq ($(origin CC),default)
  CC := gcc
endif
BUILD   ?= build
CSTD    := -std=c11 -D_GNU_SOURCE
WARN    := -Wall -Wextra -Werror -Wno-unknown-pragmas -Wno-missing-field-initializers -Wno-format-zero-length
OPT     ?= -O3 -g -fno-math-errno -fno-trapping-math
CFLAGS  += $(CSTD) $(WARN) $(OPT) -fopenmp -Isrc $(EXTRA)
DEP     := -MMD -MP
LDLIBS  += -lcjson -lyaml -lm -lpthread -ldl
LDFLAGS += -fopenmp $(EXTRA)

DIRS := base io graph run cpu cuda passes plan models data train report cli
SRCS := $(filter-out src/cli/main.c,$(foreach d,$(DIRS),$(wildcard src/$(d)/*.c)))

# CUDA: on where nvcc is found, `make CUDA=0` forces it off. The device is a plug-in
# beside the program (src/cuda/cuda.h); the planning half, plan.c, is in every build.
NVCC      ?= $(shell command -v nvcc)
CUDA      ?= $(if $(NVCC),1,0)
CUDA_ARCH ?= sm_90
CUDA_HOME ?= $(patsubst %/bin/nvcc,%,$(realpath $(NVCC)))
CUDA_CS   := $(filter-out src/cuda/plan.c src/cuda/load.c,$(wildcard src/cuda/*.c))
SRCS      := $(filter-out $(CUDA_CS),$(SRCS))
ifeq ($(CUDA),1)
  ifneq ($(words $(wildcard $(CUDA_HOME)/include/cuda_runtime_api.h $(CUDA_HOME)/include/cublasLt.h)),2)
    $(error nvcc is $(NVCC), but cuda_runtime_api.h or cublasLt.h is not in $(CUDA_HOME)/include: set CUDA_HOME, or build with make CUDA=0)
  endif
  CUDA_OBJS := $(CUDA_CS:src/%.c=$(BUILD)/%.o) $(patsubst src/%.cu,$(BUILD)/%.cu.o,$(wildcard src/cuda/*.cu))
  CUDA_LIBS := $(foreach d,$(wildcard $(CUDA_HOME)/lib64 $(CUDA_HOME)/lib),-L$(d) -Wl,-rpath,$(d)) -lcublasLt -lcudart -lstdc++
  NVFLAGS   := -arch=$(CUDA_ARCH) -O3 -std=c++17 -lineinfo -Isrc -MMD -MP -Werror all-warnings -Xcompiler -fPIC,-Wall,-Wextra
  PLUGIN    := $(BUILD)/plimsoll-cuda.so
endif
OBJS := $(SRCS:src/%.c=$(BUILD)/%.o)
LIB  := $(BUILD)/libplimsoll.a

all: $(BUILD)/plimsoll $(PLUGIN)

# -rdynamic: the plug-in uses the program's own functions.
$(BUILD)/plimsoll: $(BUILD)/cli/main.o $(LIB)
	$(CC) $(LDFLAGS) -rdynamic $^ $(LDLIBS) -o $@
$(BUILD)/plimsoll-cuda.so: $(CUDA_OBJS)
	$(CC) -shared $^ $(CUDA_LIBS) -o $@
$(LIB): $(OBJS) $(BUILD)/objects
	@rm -f $@ && ar rcs $@ $(OBJS)
# Changes when the list does: a source gone, or CUDA switched, makes another library.
$(BUILD)/objects: always
	@mkdir -p $(@D) && echo '$(OBJS)' | cmp -s - $@ || echo '$(OBJS)' >$@
$(BUILD)/%.o: src/%.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(DEP) -c $< -o $@
$(CUDA_OBJS): CFLAGS += -fPIC -isystem $(CUDA_HOME)/include
$(BUILD)/%.cu.o: src/%.cu
	@mkdir -p $(@D)
	$(NVCC) $(NVFLAGS) -c $< -o $@

TESTS := $(patsubst tests/%.c,$(BUILD)/tests/%,$(wildcard tests/test_*.c))
$(BUILD)/tests/%: tests/%.c $(LIB)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(DEP) -MF $@.d -MT $@ -Itests $< $(LIB) $(LDFLAGS) $(LDLIBS) -lcmocka -o $@

# A fuzz target with a main that feeds it the stored corpus: any compiler can do that.
REPLAYS := $(patsubst tests/fuzz/fuzz_%.c,$(BUILD)/tests/replay_%,$(wildcard tests/fuzz/fuzz_*.c))
$(REPLAYS): $(BUILD)/tests/replay_%: tests/fuzz/fuzz_%.c tests/fuzz/replay_main.c $(LIB)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $^ $(LDFLAGS) $(LDLIBS) -o $@
HELPERS := $(addprefix $(BUILD)/tests/,compare json_get forge cuda_seam)
tests: $(TESTS) $(REPLAYS) $(HELPERS)

# The CUDA device against the reference kernels: needs none of the libraries that
# files and configurations need, so that it builds on a bare machine with a card.
SEAM := $(filter $(foreach d,base graph run cpu cuda passes plan,$(BUILD)/$(d)/%),$(OBJS))
$(BUILD)/libseam.a: $(SEAM)
	rm -f $@ && ar rcs $@ $(SEAM)
$(BUILD)/tests/cuda_seam: tests/cuda_seam.c $(BUILD)/libseam.a $(PLUGIN)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $< $(BUILD)/libseam.a $(LDFLAGS) -rdynamic -lm -lpthread -ldl -o $@

# --- what people type ---------------------------------------------------------

# A build after `deps`, in a make of its own: as parallel as this one, or on all cores.
AGAIN = echo "building in $(BUILD)" && $(MAKE) -s --no-print-directory $(if $(findstring jobserver,$(MAKEFLAGS)),,-j$(shell nproc))

deps:
	@CC="$(CC)" tools/deps.sh
test: deps
	+@$(AGAIN) check
check: all tests
	+@BUILD=$(BUILD) tools/test.sh $(PARTS)
demo: deps
	+@$(AGAIN) all
	@BUILD=$(BUILD) tools/demo.sh
docs: all
	@BUILD=$(BUILD) tools/docs.sh

# The instrumentation hides value ranges from the compiler, which then warns of what cannot be.
SANITIZE := -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer \
            -Wno-format-truncation -Wno-maybe-uninitialized
asan: deps
	+@$(AGAIN) BUILD=$(BUILD)/asan CUDA=0 OPT='-O1 -g' EXTRA='$(SANITIZE)' PARTS='unit replay golden' check

FUZZ_SECONDS ?= 60
FUZZ_SRCS    := $(foreach d,base io data,$(wildcard src/$(d)/*.c))
FUZZERS      := $(patsubst tests/fuzz/%.c,$(BUILD)/fuzz/%,$(wildcard tests/fuzz/fuzz_*.c))
$(BUILD)/fuzz/%: tests/fuzz/%.c $(FUZZ_SRCS) $(wildcard src/base/*.h src/io/*.h src/data/*.h)
	@mkdir -p $(@D)
	clang $(CSTD) -g -O1 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined -Isrc $< $(FUZZ_SRCS) -lcjson -lyaml -lm -o $@
fuzz: deps
	@CC="$(CC)" tools/deps.sh fuzz
	+@$(AGAIN) $(FUZZERS)
	@BUILD=$(BUILD) SECONDS_EACH=$(FUZZ_SECONDS) tools/fuzz.sh

BENCHES := $(patsubst bench/%.c,$(BUILD)/bench/%,$(wildcard bench/bench_*.c))
$(BUILD)/bench/%: bench/%.c $(LIB)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(DEP) -MF $@.d -MT $@ $< $(LIB) $(LDFLAGS) $(LDLIBS) -o $@
bench: deps
	+@$(AGAIN) $(BENCHES)
	@for b in $(BENCHES); do $$b || exit 1; done

clean:
	rm -rf $(BUILD)
.PHONY: all tests deps test check demo docs asan fuzz bench clean always

-include $(OBJS:.o=.d) $(CUDA_OBJS:.o=.d) $(BUILD)/cli/main.d $(TESTS:=.d) $(HELPERS:=.d) $(BENCHES:=.d)
