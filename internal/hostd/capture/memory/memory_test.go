package memory

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/oklog/ulid/v2"

	"github.com/fusevm/fuse/internal/hostd/proc"
	"github.com/fusevm/fuse/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

const size = 4 << 20

// filled is memory with a page of data.
func filled(t *testing.T) *os.File {
	t.Helper()
	f, err := New("test", size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	for at := int64(0); at < size; at += 4096 { // as QEMU does for pages that are zero
		if _, err := f.WriteAt([]byte{0}, at); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := f.WriteAt([]byte("word"), 1<<20); err != nil {
		t.Fatal(err)
	}
	return f
}

func TestSealedMemoryIsConstantAndSmall(t *testing.T) {
	testkit.Leaks(t)
	f := filled(t)
	if err := CheckSealed(f, size); !errors.Is(err, ErrUnsealed) {
		t.Errorf("before: %v", err)
	}
	m, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if err := seal(ended, f); !errors.Is(err, unix.EBUSY) {
		t.Errorf("while somebody can write: %v", err)
	}
	unmapped := make(chan error, 1)
	time.AfterFunc(200*time.Millisecond, func() { unmapped <- unix.Munmap(m) }) // as of a process that has ended
	if err := errors.Join(Seal(t.Context(), f), <-unmapped); err != nil {
		t.Fatal(err)
	}
	if err := CheckSealed(f, size); err != nil {
		t.Error(err)
	}
	if err := CheckSealed(f, size+1); err == nil {
		t.Error("another size is taken")
	}
	if _, err := f.WriteAt([]byte("x"), 0); err == nil {
		t.Error("it can be written")
	}
	if n := Bytes(f); n > 8192 {
		t.Errorf("it takes %d bytes", n)
	}
	private, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	private[1<<20] = 'W'
	if err := unix.Munmap(private); err != nil {
		t.Fatal(err)
	}
	var b [4]byte
	if _, err := f.ReadAt(b[:], 1<<20); err != nil || string(b[:]) != "word" {
		t.Errorf("a private change is seen: %q, %v", b, err)
	}
}

func TestSavedMemoryIsLoadedOrRefused(t *testing.T) {
	testkit.Leaks(t)
	f := filled(t)
	path := filepath.Join(t.TempDir(), "memory")
	c, err := Save(t.Context(), f, path, nil)
	if err != nil || c.Size != size || c.Bytes != 4096 {
		t.Fatalf("%+v, %v", c, err)
	}
	got, err := Load(t.Context(), path, "test", c, nil)
	if err != nil {
		t.Fatal(err)
	}
	a, b := make([]byte, size), make([]byte, size)
	_, err1 := f.ReadAt(a, 0)
	_, err2 := got.ReadAt(b, 0)
	if err := errors.Join(err1, err2, got.Close()); err != nil || !bytes.Equal(a, b) {
		t.Errorf("it is another one (%v)", err)
	}
	saved, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, spoilt := range map[string][]byte{
		"a changed byte": append(append(bytes.Clone(saved[:1<<20]), saved[1<<20]^1), saved[1<<20+1:]...),
		"a cut file":     saved[:size/2], "an empty one": nil, "a longer one": append(bytes.Clone(saved), 0),
		"all zero": make([]byte, size),
	} {
		if err := os.WriteFile(path, spoilt, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(t.Context(), path, "test", c, nil); !errors.Is(err, ErrDigest) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Save(t.Context(), f, path, nil); !errors.Is(err, os.ErrExist) {
		t.Errorf("over another file: %v", err)
	}
}

func TestAHolderKeepsMemoryAndIsFoundByName(t *testing.T) {
	testkit.Leaks(t)
	name := "fuse-" + ulid.Make().String() + "-hold.x"
	if _, _, err := Held(name); !errors.Is(err, ErrNoHolder) {
		t.Errorf("before: %v", err)
	}
	f := filled(t)
	if err := Seal(t.Context(), f); err != nil {
		t.Fatal(err)
	}
	pid, err := Hold(f, name)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	got, found, err := Held(name)
	if err != nil || found != pid {
		t.Fatalf("found %d, %v, want %d", found, err, pid)
	}
	var b [4]byte
	if _, err := got.ReadAt(b[:], 1<<20); err != nil || string(b[:]) != "word" {
		t.Errorf("it holds %q, %v", b, err)
	}
	if err := errors.Join(CheckSealed(got, size), got.Close()); err != nil {
		t.Error(err)
	}
	if _, _, err := Held(name[:len(name)-1]); !errors.Is(err, ErrNoHolder) {
		t.Errorf("of a shorter name: %v", err)
	}
	boot, err := proc.BootID()
	if err != nil {
		t.Fatal(err)
	}
	start, err := proc.StartTime(pid)
	if err != nil {
		t.Fatal(err)
	}
	p, err := proc.Open(proc.Ident{PID: pid, Start: start, BootID: boot}, boot)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(p.End(context.Background()), p.Close()); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Held(name); !errors.Is(err, ErrNoHolder) {
		t.Errorf("after its end: %v", err)
	}
}

// TestAnothersMemoryIsNotTaken has a process of another user bear a holder's name.
func TestAnothersMemoryIsNotTaken(t *testing.T) {
	name := "fuse-" + ulid.Make().String() + "-hold.x"
	f := filled(t)
	defer f.Close()
	if err := Seal(t.Context(), f); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/bin/sh", "-c", "read -r _", "guest="+name)
	cmd.ExtraFiles = []*os.File{f}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = in.Close()
		_ = cmd.Wait()
	}()
	if found, err := proc.Named(name); err != nil || len(found) != 1 {
		t.Fatalf("it is found as %v, %v", found, err)
	}
	if got, pid, err := Held(name); !errors.Is(err, ErrNoHolder) {
		t.Errorf("taken: %v of process %d, %v", got, pid, err)
	}
}
