package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/fusevm/fuse/internal/hostd/image/oci"
	"github.com/fusevm/fuse/internal/hostd/image/tree"
)

// debianPackages are what agents and builds ask for first.
var debianPackages = []string{
	"build-essential", "ca-certificates", "curl", "git", "iproute2", "less", "openssh-client", "procps",
	"python3", "python3-pip", "python3-venv",
}

// debian is a root of this host's own Debian release, made by mmdebstrap.
var debian = recipe{
	id: "debian/1",
	env: map[string]string{
		"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME": "/root", "LANG": "C.UTF-8",
	},
	workdir: "/workspace",
	archive: func(ctx context.Context, s *Store, path string) ([]string, error) {
		// The host's own sources: what its administrator trusts.
		out, err := s.tools.run(ctx, "", "apt-get", "indextargets", "--format", "$(SITE) $(RELEASE)", "Created-By: Packages")
		if err != nil {
			return nil, aptError("debian", err)
		}
		mirror, suite, ok := strings.Cut(strings.SplitN(strings.TrimSpace(out), "\n", 2)[0], " ")
		if !ok {
			return nil, aptError("debian", errors.New("apt knows no release"))
		}
		tools := s.tools
		if os.Geteuid() == 0 { // so that what a crash leaves is cleared with the rest
			tools.env = append(slices.Clone(tools.env), "TMPDIR="+filepath.Dir(path))
		}
		_, err = tools.run(ctx, "", "mmdebstrap", "--quiet", "--format=tar", "--variant=minbase", "--architectures="+s.arch,
			"--include="+strings.Join(debianPackages, ","), "--dpkgopt=path-exclude=/usr/share/man/*", "--dpkgopt=path-exclude=/usr/share/doc/*",
			suite, path, mirror)
		if err != nil {
			return nil, aptError("debian", err)
		}
		return debianPackages, nil
	},
}

// buildArchive makes the image of a recipe that gives an archive.
func (s *Store) buildArchive(ctx context.Context, r recipe, m *Meta, tmp string, progress func(string)) (Meta, error) {
	fail := func(err error) (Meta, error) {
		return Meta{}, fmt.Errorf("build image %s: %w", m.Name, pulls{s}.diskError(err))
	}
	if err := (pulls{s}).room(ctx, 2<<30); err != nil {
		return Meta{}, err
	}
	progress("installing the packages of " + m.Name)
	path := filepath.Join(tmp, "root.tar")
	var err error
	if m.Packages, err = r.archive(ctx, s, path); err != nil {
		return fail(err)
	}
	for _, sub := range []string{"spool", "root"} {
		if err := os.Mkdir(filepath.Join(tmp, sub), 0o700); err != nil {
			return fail(err)
		}
	}
	f, err := os.Open(path)
	if err != nil {
		return fail(err)
	}
	defer f.Close()
	progress("making the root filesystem of " + m.Name)
	t := tree.New(filepath.Join(tmp, "spool"), pulls{s}.limits())
	if err := t.Apply(ctx, f, func(next int64) error { return pulls{s}.room(ctx, next) }); err != nil {
		return fail(err)
	}
	prepare(t, m.Workdir)
	m.Digest = m.Name // of the UUID only; publish sets it
	if err := (pulls{s}).fileSystem(ctx, t, PullOptions{Progress: func(oci.Progress) {}}, m, tmp); err != nil {
		return fail(err)
	}
	if err := s.publish(filepath.Join(tmp, "rootfs.ext4"), m); err != nil {
		return fail(err)
	}
	return *m, nil
}
