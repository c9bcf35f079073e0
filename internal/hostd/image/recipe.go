package image

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fusevm/fuse/internal/failpoint"
)

// recipe makes the root directory of an image from Debian packages. Its id
// changes whenever what it makes changes.
type recipe struct {
	id       string
	packages []string
	env      map[string]string
	workdir  string
	fill     func(ctx context.Context, root string) error
	// archive makes the whole root as one archive instead, in place of packages
	// and fill. It is for roots with files of many owners.
	archive func(ctx context.Context, s *Store, path string) (packages []string, err error)
}

var recipes = map[string]recipe{
	"minimal": {
		id:       "minimal/1",
		packages: []string{"busybox-static"},
		env: map[string]string{
			"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
			"HOME": "/root",
		},
		workdir: "/workspace",
		fill:    fillMinimal,
	},
	"debian": debian,
}

// BuiltIn reports whether Build knows how to make the named image.
func BuiltIn(name string) bool { _, ok := recipes[name]; return ok }

func recipeNames() []string { return slices.Sorted(maps.Keys(recipes)) }

// epoch is the time of every file in an image, so that equal inputs make
// equal digests on every host.
var epoch = time.Unix(1_700_000_000, 0)

// Sizes of a fresh root filesystem. It is made small and grows in the guest;
// blocks for group descriptors are kept free up to maxRoot.
const (
	rootSize     = "64M"
	journalMB    = 16
	maxRootBlock = 1 << 29 // 2 TiB of 4 KiB blocks
)

// buildRoot makes the image's filesystem. The caller holds the lock.
func (s *Store) buildRoot(ctx context.Context, name string, r recipe, progress func(string)) (Meta, error) {
	tmp, err := os.MkdirTemp(s.imagesDir(), tmpPrefix)
	if err != nil {
		return Meta{}, fmt.Errorf("build image %s: %w", name, err)
	}
	defer os.RemoveAll(tmp)
	m := Meta{Name: name, Arch: s.arch, Env: r.env, Workdir: r.workdir, Recipe: r.id, Created: time.Now().UTC().Truncate(time.Second)}
	if r.archive != nil {
		return s.buildArchive(ctx, r, &m, tmp, progress)
	}
	root := filepath.Join(tmp, "root")
	if err := os.Mkdir(root, 0o755); err != nil {
		return Meta{}, fmt.Errorf("build image %s: %w", name, err)
	}
	for _, pkg := range r.packages {
		path, err := s.fetchDeb(ctx, pkg, progress)
		if err != nil {
			return Meta{}, err
		}
		if err := s.tools.unpackDeb(ctx, path, root); err != nil {
			return Meta{}, fmt.Errorf("build image %s: %w", name, err)
		}
		m.Packages = append(m.Packages, debName(path))
	}
	progress("making the root filesystem of " + name)
	if err := r.fill(ctx, root); err != nil {
		return Meta{}, fmt.Errorf("build image %s: %w", name, err)
	}
	ext4 := filepath.Join(tmp, "rootfs.ext4")
	if err := s.makeExt4(ctx, root, ext4, name); err != nil {
		return Meta{}, fmt.Errorf("build image %s: %w", name, err)
	}
	if err := s.publish(ext4, &m); err != nil {
		return Meta{}, fmt.Errorf("build image %s: %w", name, err)
	}
	return m, nil
}

// publish moves a finished filesystem into place and then names it current.
func (s *Store) publish(ext4 string, m *Meta) error {
	sum, err := fileDigest(ext4)
	if err != nil {
		return err
	}
	st, err := os.Stat(ext4)
	if err != nil {
		return err
	}
	m.Digest, m.Size = "sha256:"+sum, st.Size()
	return s.place(ext4, m)
}

// place moves the file of a described image into place and names it current.
func (s *Store) place(ext4 string, m *Meta) error {
	dir := filepath.Join(s.imagesDir(), m.Name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := os.Chmod(ext4, 0o444); err != nil {
		return err
	}
	if err := syncPath(ext4); err != nil {
		return err
	}
	if err := failpoint.Hit("image.publish"); err != nil {
		return err
	}
	if err := rename(ext4, filepath.Join(dir, digestFile(m.Digest))); err != nil {
		return err
	}
	if err := failpoint.Hit("image.meta"); err != nil {
		return err
	}
	if err := writeMeta(filepath.Join(dir, "meta.json"), m); err != nil {
		return err
	}
	return syncPath(s.imagesDir())
}

// makeExt4 turns a directory into a filesystem image whose bytes depend on
// the directory and the name alone.
func (s *Store) makeExt4(ctx context.Context, root, path, name string) error {
	fix, err := setTimes(root)
	if err != nil {
		return err
	}
	sum := sha256.Sum256([]byte("fuse image " + name))
	uuid := fmt.Sprintf("%x-%x-%x-%x-%x", sum[0:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16])
	_, err = s.tools.run(ctx, "", "mke2fs", "-q", "-F", "-t", "ext4", "-b", "4096", "-I", "256", "-m", "0",
		"-O", "^huge_file,^orphan_file,64bit,metadata_csum,resize_inode", "-J", fmt.Sprintf("size=%d", journalMB),
		"-U", uuid, "-L", "fuse-root", "-d", root,
		"-E", fmt.Sprintf("hash_seed=%s,lazy_itable_init=0,lazy_journal_init=0,root_owner=0:0,resize=%d", uuid, maxRootBlock),
		path, rootSize)
	if err != nil {
		return err
	}
	script := path + ".debugfs"
	if err := os.WriteFile(script, []byte(fix), 0o600); err != nil {
		return err
	}
	_, err = s.tools.run(ctx, "", "debugfs", "-w", "-f", script, path)
	return err
}

// setTimes gives every file below root the same time. The change time cannot
// be set on the host; the result is a debugfs script that sets it in the image.
func setTimes(root string) (script string, err error) {
	var dirs []string
	var fix strings.Builder
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		inside := "/" + strings.TrimPrefix(strings.TrimPrefix(path, root), "/")
		if strings.ContainsAny(inside, "\"\n") {
			return fmt.Errorf("the root has a file with an odd name: %q", inside)
		}
		fmt.Fprintf(&fix, "set_inode_field \"%[1]s\" ctime @%[2]d\nset_inode_field \"%[1]s\" ctime_extra 0\n", inside, epoch.Unix())
		if d.IsDir() {
			dirs = append(dirs, path)
			return nil
		}
		return lutimes(path)
	})
	for _, dir := range slices.Backward(dirs) {
		if err == nil {
			err = lutimes(dir)
		}
	}
	return fix.String(), err
}

// fillMinimal makes a small root around the static busybox that is unpacked
// in it: every applet at the path busybox names for it.
func fillMinimal(ctx context.Context, root string) error {
	for _, dir := range []string{"usr/share", "etc/init.d"} {
		if err := os.RemoveAll(filepath.Join(root, dir)); err != nil {
			return err
		}
	}
	if err := applets(ctx, root); err != nil {
		return err
	}
	for _, d := range minimalDirs {
		path := filepath.Join(root, d.path)
		if err := os.MkdirAll(path, 0o755); err != nil {
			return err
		}
		if err := os.Chmod(path, d.mode); err != nil {
			return err
		}
	}
	for name, text := range minimalFiles {
		mode := os.FileMode(0o644)
		if name == "etc/shadow" {
			mode = 0o640
		}
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), mode); err != nil {
			return err
		}
	}
	return nil
}

func applets(ctx context.Context, root string) error {
	busybox := filepath.Join(root, "bin/busybox")
	if _, err := os.Stat(busybox); err != nil { // merged /usr: Debian 13 and newer
		if err := os.MkdirAll(filepath.Dir(busybox), 0o755); err != nil {
			return err
		}
		if err := os.Rename(filepath.Join(root, "usr/bin/busybox"), busybox); err != nil {
			return fmt.Errorf("find busybox in its package: %w", err)
		}
	}
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, busybox, "--list-full")
	cmd.Stdout = &out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("list busybox's applets: %w", err)
	}
	for _, applet := range strings.Fields(out.String()) {
		path := filepath.Join(root, filepath.Clean("/"+applet))
		if path == busybox {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.Symlink("/bin/busybox", path); err != nil {
			return err
		}
	}
	return nil
}

type dirMode struct {
	path string
	mode os.FileMode
}

var minimalDirs = []dirMode{
	{"dev", 0o755},
	{"proc", 0o555},
	{"sys", 0o555},
	{"run", 0o755},
	{"tmp", 0o777 | os.ModeSticky},
	{"var/tmp", 0o777 | os.ModeSticky},
	{"var/log", 0o755},
	{"root", 0o700},
	{"home", 0o755},
	{"mnt", 0o755},
	{"srv", 0o755},
	{"fuse", 0o755},
	{"etc/fuse", 0o755},
	{"etc/profile.d", 0o755},
	{"usr/local/bin", 0o755},
	{"workspace", 0o755},
}

var minimalFiles = map[string]string{
	"etc/passwd":        "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/bin/false\n",
	"etc/group":         "root:x:0:\ntty:x:5:\nnogroup:x:65534:\n",
	"etc/shadow":        "root:*:19000:0:99999:7:::\nnobody:*:19000:0:99999:7:::\n",
	"etc/hosts":         "127.0.0.1\tlocalhost\n::1\tlocalhost\n",
	"etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
	"etc/shells":        "/bin/sh\n/bin/ash\n",
	"etc/resolv.conf":   "",
	"etc/hostname":      "fuse\n",
	"etc/os-release":    "NAME=\"Fuse minimal\"\nID=fuse-minimal\nID_LIKE=debian\nPRETTY_NAME=\"Fuse minimal (busybox)\"\n",
	"etc/profile":       "export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\nfor f in /etc/profile.d/*.sh; do [ -r \"$f\" ] && . \"$f\"; done\nunset f\n",
}
