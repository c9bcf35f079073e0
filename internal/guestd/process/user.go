package process

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/fusevm/fuse/internal/fleet"
)

// maxAccountFile bounds what is read of /etc/passwd and /etc/group, in bytes.
const maxAccountFile = 4 << 20

// account is who a command runs as.
type account struct {
	name     string // empty: a number without an entry
	uid, gid uint32
	groups   []uint32
	home     string
}

// lookup resolves user, which is a name or a uid, alone or with ":" and a
// group or a gid; empty means root. A bare uid without an entry gets group 0,
// as with containers. root is the directory that holds etc.
func lookup(root, user string) (account, error) {
	who, group, hasGroup := strings.Cut(user, ":")
	if who == "" && !hasGroup {
		who = "0"
	}
	a, err := findUser(root, who)
	if err != nil {
		return account{}, err
	}
	if hasGroup {
		if a.gid, err = findGroup(root, group); err != nil {
			return account{}, err
		}
		a.groups = nil
	} else if a.name != "" {
		if a.groups, err = memberships(root, a.name); err != nil {
			return account{}, err
		}
	}
	if !slices.Contains(a.groups, a.gid) {
		a.groups = append([]uint32{a.gid}, a.groups...)
	}
	return a, nil
}

func findUser(root, who string) (account, error) {
	number, isNumber := parseID(who)
	byNumber := account{uid: number, home: "/"}
	var byName *account
	known := false
	err := eachEntry(filepath.Join(root, "etc/passwd"), func(f []string) {
		if len(f) < 6 {
			return
		}
		uid, ok1 := parseID(f[2])
		gid, ok2 := parseID(f[3])
		if !ok1 || !ok2 {
			return
		}
		a := account{name: f[0], uid: uid, gid: gid, home: f[5]}
		if a.home == "" {
			a.home = "/"
		}
		if f[0] == who && byName == nil {
			byName = &a
		}
		if isNumber && uid == number && !known {
			byNumber, known = a, true
		}
	})
	switch {
	case err != nil:
		return account{}, err
	case byName != nil:
		return *byName, nil
	case isNumber && number == 0 && !known:
		return account{name: "root", home: "/root"}, nil // an image without accounts
	case isNumber:
		return byNumber, nil
	case who == "root":
		return account{name: "root", home: "/root"}, nil
	}
	return account{}, fleet.Errorf(fleet.CodeInvalidArgument, "user %q is not in the guest's /etc/passwd", who)
}

func findGroup(root, group string) (uint32, error) {
	number, isNumber := parseID(group)
	gid, found := uint32(0), false
	err := eachEntry(filepath.Join(root, "etc/group"), func(f []string) {
		if id, ok := parseGroup(f); ok && f[0] == group && !found {
			gid, found = id, true
		}
	})
	switch {
	case err != nil:
		return 0, err
	case found:
		return gid, nil
	case isNumber:
		return number, nil
	}
	return 0, fleet.Errorf(fleet.CodeInvalidArgument, "group %q is not in the guest's /etc/group", group)
}

func memberships(root, name string) ([]uint32, error) {
	var gids []uint32
	err := eachEntry(filepath.Join(root, "etc/group"), func(f []string) {
		gid, ok := parseGroup(f)
		if ok && len(f) >= 4 && slices.Contains(strings.Split(f[3], ","), name) && !slices.Contains(gids, gid) {
			gids = append(gids, gid)
		}
	})
	return gids, err
}

func parseGroup(f []string) (uint32, bool) {
	if len(f) < 3 {
		return 0, false
	}
	return parseID(f[2])
}

// parseID reads a uid or gid; the highest number means "no change" to the
// kernel and is none.
func parseID(s string) (uint32, bool) {
	n, err := strconv.ParseUint(s, 10, 32)
	return uint32(n), err == nil && n != math.MaxUint32
}

// eachEntry calls f with the fields of every line. A file that is missing has
// no lines; one that is longer than the bound is an error, since a cut file
// could name the wrong account.
func eachEntry(path string, f func(fields []string)) error {
	file, err := os.Open(path)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read accounts: %w", err)
	}
	defer file.Close()
	in := &io.LimitedReader{R: file, N: maxAccountFile + 1}
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		f(strings.Split(lines.Text(), ":"))
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("read accounts: %s: %w", path, err)
	}
	if in.N == 0 {
		return fmt.Errorf("read accounts: %s is longer than %d bytes", path, maxAccountFile)
	}
	return nil
}
