package sqlite

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
)

// holder is what the lock file says of the process that has locked it, for
// others to find it by, and of the newest term that began beside it. When it is
// lost, so is the warning of a database that was emptied, and no more.
type holder struct {
	state.Candidate
	PID  int   `json:"pid"`
	Term int64 `json:"term,omitempty"` // zero until it has begun
	Last int64 `json:"last,omitempty"` // of an earlier holder
}

// maxHolder bounds the text in a lock file.
const maxHolder = 4096

func (h holder) write(f *os.File) error {
	text, err := json.Marshal(h)
	if err != nil {
		return fmt.Errorf("lock of the state database: %w", err)
	}
	_, err = f.WriteAt(append(text, '\n'), 0)
	if err = errors.Join(err, f.Truncate(int64(len(text)+1))); err != nil {
		return fmt.Errorf("lock of the state database: %w", err)
	}
	return nil
}

// readHolder reads what the lock file says now, which may be half written or
// of a process that has ended.
func readHolder(f *os.File) holder {
	var h holder
	raw, err := io.ReadAll(io.NewSectionReader(f, 0, maxHolder))
	if err != nil || json.Unmarshal(raw, &h) != nil || h.Name == "" {
		return holder{Candidate: state.Candidate{Name: "another process"}}
	}
	return h
}

// Who tries to learn whether a file is locked holds it for a moment itself; one
// who wants it tries again before it believes that it is taken.
const (
	lockTries = 3
	lockPause = 2 * time.Millisecond
)

// lockFile takes the lock that lasts as long as the process: the kernel drops
// it when the process dies, however it dies.
func lockFile(ctx context.Context, database string) (*os.File, error) {
	path := database + ".lock"
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock of the state database: %w", err)
	}
	for try := 1; ; try++ {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) || try == lockTries {
			break
		}
		select {
		case <-time.After(lockPause):
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), f.Close())
		}
	}
	switch {
	case errors.Is(err, unix.EWOULDBLOCK):
		err = state.HeldBy("state database "+database, readHolder(f).Candidate).
			With(fleet.DetailRemedy, "stop that server, or start this one with another data directory")
	case err != nil:
		err = fmt.Errorf("lock of the state database: %w", err)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Leader reads who has the file locked.
func (j *Journal) Leader(context.Context) (state.LeaseInfo, bool, error) {
	if d, err := j.database(); err == nil {
		return state.LeaseInfo{Candidate: d.holder.Candidate, Term: d.holder.Term}, true, nil
	}
	f, err := os.Open(j.cfg.Path + ".lock")
	if errors.Is(err, fs.ErrNotExist) {
		return state.LeaseInfo{}, false, nil
	}
	if err != nil {
		return state.LeaseInfo{}, false, fmt.Errorf("lock of the state database: %w", err)
	}
	defer f.Close()
	err = unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB)
	if err == nil {
		return state.LeaseInfo{}, false, nil
	}
	if !errors.Is(err, unix.EWOULDBLOCK) {
		return state.LeaseInfo{}, false, fmt.Errorf("lock of the state database: %w", err)
	}
	h := readHolder(f)
	return state.LeaseInfo{Candidate: h.Candidate, Term: h.Term}, true, nil
}

// fileID is what a file is, whatever its name.
type fileID struct{ dev, ino uint64 }

func identity(info fs.FileInfo) (fileID, error) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fileID{}, errors.New("the file has no inode")
	}
	return fileID{st.Dev, st.Ino}, nil
}

// identityAt is the identity of what lies at path now.
func identityAt(path string) (fileID, error) {
	info, err := os.Stat(path)
	if err != nil {
		return fileID{}, err
	}
	return identity(info)
}

// identify remembers which files these are.
func (d *database) identify() (err error) {
	if d.files[0], err = identityAt(d.path); err != nil {
		return err
	}
	info, err := d.lock.Stat()
	if err != nil {
		return err
	}
	if d.files[1], err = identity(info); err != nil {
		return err
	}
	return d.inPlace()
}

// inPlace ends leadership when a file is not the one that lies at its path any
// more: what is written then is lost, and another server may have locked the
// new one.
func (d *database) inPlace() error {
	for i, path := range []string{d.path, d.path + ".lock"} {
		id, err := identityAt(path)
		if err == nil && id == d.files[i] {
			continue
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return fmt.Errorf("%w: %s was removed or replaced", fleet.ErrNotLeader, path)
	}
	return nil
}
