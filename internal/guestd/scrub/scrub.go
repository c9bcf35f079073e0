// Package scrub overwrites what this program's own memory still holds of
// secrets that are another machine's: what a garbage collector has let go of
// stays where it was.
package scrub

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// MinLength is that of the shortest secret that is looked for: a shorter one
	// may well stand for something else.
	MinLength = 16
	chunk     = 256 << 10
	maxNeedle = 4 << 10
)

// Self overwrites every occurrence of secrets in this program's writable
// memory, and says how many there were. The secrets themselves are among them:
// the caller must not use them, or anything that holds them, afterwards.
func Self(secrets ...[]byte) (int, error) {
	own, err := unix.Mmap(-1, 0, chunk+maxNeedle*(len(secrets)+2), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return 0, fmt.Errorf("memory to look through memory: %w", err)
	}
	defer func() { clear(own); _ = unix.Munmap(own) }()
	// What is looked for lies in pages that are left out, else it would be found
	// and overwritten before the rest.
	var needles [][]byte
	at := chunk + maxNeedle
	for _, s := range secrets {
		if len(s) < MinLength || len(s) > maxNeedle {
			continue
		}
		n := copy(own[at:at+maxNeedle], s)
		needles = append(needles, own[at:at+n:at+n])
		at += maxNeedle
	}
	if len(needles) == 0 {
		return 0, nil
	}
	mem, err := os.OpenFile("/proc/self/mem", os.O_RDWR, 0)
	if err != nil {
		return 0, err
	}
	defer mem.Close()
	regions, err := writable()
	if err != nil {
		return 0, err
	}
	// Nothing that is overwritten may be given to somebody meanwhile: no
	// collection, and one thread of this program at a time.
	runtime.GC()
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	skip := uintptr(unsafe.Pointer(unsafe.SliceData(own)))
	n := 0
	for _, r := range regions {
		if skip >= r.from && skip < r.to {
			n += look(mem, region{r.from, skip}, own, needles)
			r.from = skip + uintptr(len(own)+os.Getpagesize()-1)&^uintptr(os.Getpagesize()-1)
		}
		n += look(mem, r, own, needles)
	}
	return n, nil
}

// region is a part of the address space.
type region struct{ from, to uintptr }

// look goes through one region. What cannot be read has gone meanwhile.
func look(mem *os.File, r region, own []byte, needles [][]byte) int {
	n := 0
	for at := r.from; at < r.to; at += chunk {
		size := min(chunk+maxNeedle, int(r.to-at))
		buf := own[:size]
		got, _ := mem.ReadAt(buf, int64(at))
		buf = buf[:got]
		for _, needle := range needles {
			for from := 0; ; {
				i := bytes.Index(buf[from:], needle)
				if i < 0 || from+i >= chunk { // the next chunk begins with it
					break
				}
				if overwrite(mem, at+uintptr(from+i), needle, own[len(own)-len(needle):]) {
					n++
				}
				from += i + len(needle)
			}
		}
	}
	return n
}

// overwrite looks once more and writes zeros, without letting anything else of
// this program run in between. have is room to look with.
func overwrite(mem *os.File, at uintptr, needle, have []byte) bool {
	fd := mem.Fd()
	have = have[:len(needle):len(needle)]
	read, _, errno := unix.RawSyscall6(unix.SYS_PREAD64, fd, uintptr(unsafe.Pointer(unsafe.SliceData(have))), uintptr(len(have)), at, 0, 0)
	if errno != 0 || read != uintptr(len(needle)) || !bytes.Equal(have, needle) {
		clear(have)
		return false
	}
	clear(have)
	_, _, errno = unix.RawSyscall6(unix.SYS_PWRITE64, fd, uintptr(unsafe.Pointer(unsafe.SliceData(have))), uintptr(len(have)), at, 0, 0)
	return errno == 0
}

// writable are the parts of this program that it can write, shared ones apart.
func writable() ([]region, error) {
	f, err := os.Open("/proc/self/maps")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []region
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 || fields[1] != "rw-p" {
			continue
		}
		var r region
		if _, err := fmt.Sscanf(fields[0], "%x-%x", &r.from, &r.to); err != nil {
			return nil, errors.New("the kernel's list of this program's memory cannot be read")
		}
		out = append(out, r)
	}
	return out, lines.Err()
}
