package console

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestPrintable(t *testing.T) {
	long := strings.Repeat("line\n", 40)
	for in, want := range map[string]string{
		"a\r\nb\n\n":        "a | b",
		"\x1b[2J\x00ok\x07": "[2Jok",
		"bad \xff\xfe utf":  "bad ? utf",
		"":                  "",
		" \n\t\n":           "",
		long:                strings.TrimSuffix(strings.Repeat("line | ", TailLines), " | "),
	} {
		if got := Printable(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

func TestConsoleIsCutWhileItIsWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "console.log")
	w, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	line := strings.Repeat("x", 1023) + "\n"
	for i := range 5 {
		for range Max / len(line) {
			if _, err := w.WriteString(line); err != nil {
				t.Fatal(err)
			}
		}
		fmt.Fprintf(w, "the end of round %d\n", i)
		if err := Trim(path); err != nil {
			t.Fatal(err)
		}
		if got := Tail(path); !strings.HasSuffix(got, fmt.Sprintf("the end of round %d", i)) {
			t.Errorf("after a cut the tail is %.80q", got)
		}
	}
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if used := st.Sys().(*syscall.Stat_t).Blocks * 512; used > Max {
		t.Errorf("the console takes %d bytes of disk", used)
	}
}
