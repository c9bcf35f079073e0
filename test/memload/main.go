// Command memload loads a guest's memory and disk without end, so that whoever
// captured the guest can be told whether anything was lost. Each page that it
// writes and each file is determined by how many there were before. When the file
// "stop" appears in its directory it compares everything with that, and writes
// what it found to "result", which may be a pipe.
package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

const (
	pageSize = 4096
	// Pages are not written in their order. Their number is a power of two, so that
	// each is written once before any is written again.
	stride = 40503
	// A file of each directory is written after so many pages, and a look taken
	// whether to stop.
	burst     = 256
	fileSize  = 128 << 10
	filesEach = 6
)

func main() {
	if err := run(os.Args); err != nil {
		fmt.Fprintln(os.Stderr, "memload:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) < 4 {
		return errors.New("usage: memload REST MEGABYTES DIRECTORY [DIRECTORY…]; REST is from one burst to the next, and the first directory has the stop file and the result")
	}
	rest, err := time.ParseDuration(args[1])
	if err != nil {
		return err
	}
	mb, err := strconv.Atoi(args[2])
	if err != nil || mb < 1 || mb&(mb-1) != 0 {
		return fmt.Errorf("%q is not a power of two", args[2])
	}
	memory, err := syscall.Mmap(-1, 0, mb<<20, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	if err != nil {
		return fmt.Errorf("map %d MB: %w", mb, err)
	}
	l := &load{memory: memory, dirs: args[3:]}
	stop := filepath.Join(l.dirs[0], "stop")
	for {
		for range burst {
			l.page()
		}
		if err := l.files(); err != nil {
			return err
		}
		if _, err := os.Stat(stop); err == nil {
			break
		}
		time.Sleep(rest)
	}
	return os.WriteFile(filepath.Join(l.dirs[0], "result"), []byte(l.compare()+"\n"), 0o600)
}

// load is what was written so far.
type load struct {
	memory  []byte
	dirs    []string
	pages   uint64 // written
	written uint64 // files, of each directory
}

// page writes the next one: its number, words that follow from it, and their
// checksum.
func (l *load) page() {
	n := uint64(len(l.memory) / pageSize)
	at := l.pages * stride % n * pageSize
	fill(l.memory[at:at+pageSize], l.pages)
	l.pages++
}

// fill makes a block that its number determines, with a checksum at its end.
func fill(b []byte, number uint64) {
	binary.LittleEndian.PutUint64(b, number)
	x := number*0x9e3779b97f4a7c15 | 1
	for i := 8; i < len(b)-8; i += 8 {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		binary.LittleEndian.PutUint64(b[i:], x)
	}
	binary.LittleEndian.PutUint64(b[len(b)-8:], sum(b[:len(b)-8]))
}

// sum is a checksum that an emulated processor makes quickly, which has no
// instructions for those of the standard library.
func sum(b []byte) uint64 {
	h := uint64(0xcbf29ce484222325)
	for i := 0; i < len(b); i += 8 {
		h = bits.RotateLeft64((h^binary.LittleEndian.Uint64(b[i:]))*0x100000001b3, 29)
	}
	return h
}

// whole says what is wrong with a block that has to have a number.
func whole(b []byte, number uint64) error {
	if got := binary.LittleEndian.Uint64(b); got != number {
		return fmt.Errorf("has number %d instead of %d", got, number)
	}
	if binary.LittleEndian.Uint64(b[len(b)-8:]) != sum(b[:len(b)-8]) {
		return fmt.Errorf("number %d has another checksum", number)
	}
	return nil
}

// files writes the next file of each directory beside the one that it replaces.
func (l *load) files() error {
	b := make([]byte, fileSize)
	fill(b, l.written)
	for _, dir := range l.dirs {
		path := l.path(dir, l.written)
		if err := os.WriteFile(path+".new", b, 0o600); err != nil {
			return err
		}
		if err := os.Rename(path+".new", path); err != nil {
			return err
		}
	}
	l.written++
	return nil
}

func (l *load) path(dir string, number uint64) string {
	return filepath.Join(dir, fmt.Sprint("file-", number%filesEach))
}

// compare tells how many pages and files are as they were written, or the first
// that is not.
func (l *load) compare() string {
	pages, err := l.comparePages()
	if err != nil {
		return err.Error()
	}
	files, err := l.compareFiles()
	if err != nil {
		return err.Error()
	}
	// Once more from the disk itself.
	syscall.Sync()
	if err := os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0); err != nil {
		return err.Error()
	}
	if _, err := l.compareFiles(); err != nil {
		return "from the disk: " + err.Error()
	}
	return fmt.Sprintf("whole: %d pages, %d files", pages, files)
}

func (l *load) comparePages() (int, error) {
	n := uint64(len(l.memory) / pageSize)
	first := uint64(0) // that nothing has been written over
	if l.pages > n {
		first = l.pages - n
	}
	for number := first; number < l.pages; number++ {
		at := number * stride % n * pageSize
		if err := whole(l.memory[at:at+pageSize], number); err != nil {
			return 0, fmt.Errorf("of %d pages, the one at %d %w", l.pages, at/pageSize, err)
		}
	}
	return int(l.pages - first), nil
}

func (l *load) compareFiles() (int, error) {
	first, compared := uint64(0), 0
	if l.written > filesEach {
		first = l.written - filesEach
	}
	for number := first; number < l.written; number++ {
		for _, dir := range l.dirs {
			path := l.path(dir, number)
			b, err := os.ReadFile(path)
			if err != nil {
				return 0, err
			}
			if len(b) != fileSize {
				return 0, fmt.Errorf("%s has %d bytes", path, len(b))
			}
			if err := whole(b, number); err != nil {
				return 0, fmt.Errorf("of %d files, %s %w", l.written, path, err)
			}
			compared++
		}
	}
	return compared, nil
}
