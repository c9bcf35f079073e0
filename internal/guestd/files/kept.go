package files

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"strings"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/rooted"
)

// kept are directories of the machine that callers do not change.
type kept []string

// parent opens the directory of a place that is to be changed.
func (k kept) parent(r *rooted.Root, p string) (*os.Root, string, error) {
	dir, name, err := r.Parent(p)
	if err != nil {
		return nil, "", err
	}
	if err := k.mayChange(dir, name); err != nil {
		_ = dir.Close()
		return nil, "", err
	}
	return dir, name, nil
}

// below names what of the machine's own lies below a directory.
func (k kept) below(dir *os.Root) (out []string, err error) {
	at, err := fullName(dir, "")
	if err != nil {
		return nil, err
	}
	for _, own := range k {
		if rest, ok := strings.CutPrefix(own, strings.TrimSuffix(at, "/")+"/"); ok {
			out = append(out, rest)
		}
	}
	return out, nil
}

// makeParents makes directories on the way to what is to be changed, unless they
// would lie in what is the machine's own.
func (k kept) makeParents(r *rooted.Root, p string) error {
	dir, err := r.Dir(p)
	at, rest := p, ""
	for ; errors.Is(err, fs.ErrNotExist) && at != "/"; dir, err = r.Dir(at) {
		at, rest = path.Dir(at), path.Join(path.Base(at), rest)
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := k.mayChange(dir, rest); err != nil {
		return err
	}
	return r.MkdirAll(p, 0o755)
}

// mayChange refuses what is the machine's own, by where a directory really is.
func (k kept) mayChange(dir *os.Root, name string) error {
	full, err := fullName(dir, name)
	if err != nil {
		return err
	}
	for _, own := range k {
		if full == own || strings.HasPrefix(full, own+"/") {
			return fleet.Errorf(fleet.CodeForbidden, "%s is the machine's own and is not changed", own).
				With(fleet.DetailScope, "path").With(fleet.DetailLimit, "not below "+strings.Join(k, " and ")).With(fleet.DetailRemedy, "use another path")
		}
	}
	return nil
}

// mayTake refuses to move or remove what the machine's own lies in.
func (k kept) mayTake(dir *os.Root, name string) error {
	full, err := fullName(dir, name)
	if err != nil {
		return err
	}
	for _, own := range k {
		if strings.HasPrefix(own, full+"/") {
			return fleet.Errorf(fleet.CodeForbidden, "%s holds %s, which is the machine's own and is not changed", full, own).
				With(fleet.DetailScope, "path").With(fleet.DetailRemedy, "name what is in it instead")
		}
	}
	return nil
}

func fullName(dir *os.Root, name string) (string, error) {
	f, err := dir.Open(".")
	if err != nil {
		return "", err
	}
	defer f.Close()
	at, err := rooted.Real(f)
	return path.Join(at, name), err
}
