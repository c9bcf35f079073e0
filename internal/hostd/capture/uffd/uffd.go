// Package uffd lets QEMU, which runs without privileges, protect its guest's
// memory against writing while it is captured. The kernel's setting
// vm.unprivileged_userfaultfd rules that. Where it is off, this program turns
// it on for the moment that QEMU needs, and off again.
package uffd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Where the setting is, and where it is noted that it was lent.
const (
	Setting = "/proc/sys/vm/unprivileged_userfaultfd"
	Note    = "/run/fuse-userfaultfd"
)

// Lender lends the setting. Many may at once, of this program and of others; the
// last of them puts it back.
type Lender struct{ setting, note string }

// New is a Lender of this machine's setting.
func New() Lender { return Lender{Setting, Note} }

// Works says why there is no protection for an unprivileged QEMU here; nil:
// there is.
func (l Lender) Works() error {
	value, err := read(l.setting)
	if err != nil {
		return err
	}
	if value != "0" {
		return nil
	}
	if err := unix.Access(l.setting, unix.W_OK); err != nil {
		return fmt.Errorf("vm.unprivileged_userfaultfd is 0 and cannot be lent: %w", err)
	}
	return nil
}

// Lend makes the setting 1 until back is called. A lender that died is made up
// for by the next.
func (l Lender) Lend(ctx context.Context) (back func() error, err error) {
	if value, err := read(l.setting); err != nil {
		return nil, err
	} else if value != "0" {
		if _, err := os.Stat(l.note); errors.Is(err, os.ErrNotExist) {
			return func() error { return nil }, nil // it is on for good
		}
	}
	f, err := os.OpenFile(l.note, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := share(ctx, f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	back = func() error { return errors.Join(l.putBack(f), f.Close()) }
	if err := l.turnOn(f); err != nil {
		return nil, errors.Join(err, back())
	}
	return back, nil
}

// Settle puts back what a lender left that died. It waits for nobody. Who may
// not open the note has lent nothing: it is another user's.
func (l Lender) Settle() error {
	f, err := os.OpenFile(l.note, os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(l.putBack(f), f.Close())
}

// turnOn notes what the setting was before it is changed.
func (l Lender) turnOn(f *os.File) error {
	value, err := read(l.setting)
	if err != nil {
		return err
	}
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if st.Size() == 0 && value == "0" {
		if _, err := f.WriteAt([]byte("0\n"), 0); err != nil {
			return err
		}
	}
	return write(l.setting, "1\n")
}

// putBack puts back what the note says that there was, unless somebody else
// lends just now. The kernel gives a share up before it makes a lock of it, so of
// those that leave at once one is the last.
func (l Lender) putBack(f *os.File) error {
	err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil
	}
	if err != nil {
		return err
	}
	st, err := f.Stat()
	if err != nil || st.Size() == 0 {
		return err
	}
	if err := write(l.setting, "0\n"); err != nil {
		return err
	}
	return f.Truncate(0)
}

const lockEvery = 2 * time.Millisecond

// share waits until nobody puts the setting back.
func share(ctx context.Context, f *os.File) error {
	tick := time.NewTicker(lockEvery)
	defer tick.Stop()
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// write changes a setting, which is never empty in between.
func write(path, value string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

func read(path string) (string, error) {
	b, err := os.ReadFile(path)
	return strings.TrimSpace(string(b)), err
}
