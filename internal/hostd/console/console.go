// Package console keeps the logs that a guest or its QEMU goes on writing, to
// their last part, and shows them to people.
package console

import (
	"errors"
	"io"
	"os"
	"strings"
	"unicode"

	"golang.org/x/sys/unix"
)

// A log is kept to its last part: once longer than Max bytes it is cut to
// Keep. Between two looks a guest may write more.
const (
	Keep = 1 << 20
	Max  = 2 << 20
)

// TailBytes and TailLines bound what is shown of a log.
const (
	TailBytes = 4 << 10
	TailLines = 12
)

// Trim cuts the head off a console or log that QEMU goes on appending to. The
// file keeps its identity: blocks are collapsed, or, where the file system
// cannot do that, punched out.
func Trim(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	var sys unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &sys); err != nil {
		return err
	}
	if st.Size() <= Max || sys.Blocks*512 <= Max {
		return nil
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &fs); err != nil {
		return err
	}
	cut := (st.Size() - Keep) / fs.Bsize * fs.Bsize
	err = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_COLLAPSE_RANGE, 0, cut)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) {
		err = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, cut)
	}
	return err
}

// Tail returns the last lines of a file in printable form, joined by " | ";
// empty if there are none. A guest can write anything to its console.
func Tail(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	if st, err := f.Stat(); err == nil && st.Size() > TailBytes {
		if _, err := f.Seek(-TailBytes, io.SeekEnd); err != nil {
			return ""
		}
	}
	b, err := io.ReadAll(io.LimitReader(f, TailBytes))
	if err != nil {
		return ""
	}
	return Printable(string(b))
}

// Printable returns the last lines of a text in printable form, joined by " | ".
func Printable(text string) string {
	var lines []string
	for line := range strings.SplitSeq(strings.ToValidUTF8(text, "?"), "\n") {
		line = strings.Map(func(r rune) rune {
			if unicode.IsPrint(r) {
				return r
			}
			return -1
		}, line)
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines[max(0, len(lines)-TailLines):], " | ")
}

// panicSays is what a Linux kernel writes when it panics.
const panicSays = "Kernel panic - not syncing"

// Panicked reports whether the boot before the one that a console ends with
// ended in a panic. A guest can write that itself: it is evidence, not proof.
func Panicked(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	if st, err := f.Stat(); err == nil && st.Size() > panicBytes {
		if _, err := f.Seek(-panicBytes, io.SeekEnd); err != nil {
			return false
		}
	}
	b, err := io.ReadAll(io.LimitReader(f, panicBytes))
	if err != nil {
		return false
	}
	// The agent's last word of a boot is "ready"; between two of them lies the
	// end of the boot before.
	text := string(b)
	if at := strings.LastIndex(text, readySays); at >= 0 {
		text = text[:at]
		if at = strings.LastIndex(text, readySays); at >= 0 {
			text = text[at:]
		}
	}
	return strings.Contains(text, panicSays)
}

// readySays is in the line of a guest agent that has booted.
const readySays = "msg=ready"

// panicBytes bounds the part of a console that is looked at for a panic.
const panicBytes = 256 << 10
