package playguard

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/playguard/compose"
)

// Limits of what is sent, as the server has them.
const (
	maxFiles     = 256
	maxFileBytes = 1 << 20
	maxBytes     = 8 << 20
)

// composeNames are what is taken when none is named, in this order.
var composeNames = []string{"compose.yaml", "compose.yml", "docker-compose.yaml", "docker-compose.yml"}

// directory is what lies beside a compose file, as it is sent.
type directory struct {
	*app
	root    string // of the directory, absolute
	compose string // path of the compose file below it
	files   []gen.PlaygroundFile
	bytes   int
}

// openDirectory finds the compose file of a directory.
func (a *app) openDirectory(root, file string) (*directory, error) {
	abs, err := filepath.Abs(root)
	if err != nil {
		return nil, fmt.Errorf("find %s: %w", root, err)
	}
	d := &directory{app: a, root: abs}
	if file != "" {
		at, err := filepath.Abs(file)
		if err != nil {
			return nil, fmt.Errorf("find %s: %w", file, err)
		}
		if d.compose, err = filepath.Rel(abs, at); err != nil || !filepath.IsLocal(d.compose) {
			return nil, a.Usage("%s lies outside of %s: name its directory", file, root)
		}
		return d, nil
	}
	for _, name := range composeNames {
		if info, err := os.Stat(filepath.Join(abs, name)); err == nil && info.Mode().IsRegular() {
			d.compose = name
			return d, nil
		}
	}
	return nil, a.Usage("there is no compose file in %s: looked for %s", root, strings.Join(composeNames, ", "))
}

// collect reads the compose file, .env, and the files that the compose file
// uses. What is in it may be wrong: the server says what.
func (d *directory) collect(variables map[string]string) error {
	text, err := d.add(d.compose)
	if err != nil {
		return err
	}
	given := map[string]string{}
	if d.compose != ".env" {
		switch env, err := d.add(".env"); {
		case err == nil:
			given = parseEnv(env)
		case !errors.Is(err, fs.ErrNotExist):
			return err
		}
	}
	for k, v := range variables {
		given[k] = v
	}
	everything := compose.Policy{}
	for _, danger := range compose.Dangers() {
		everything[danger] = compose.Allow
	}
	rendered, wrong := compose.Render(compose.Input{Name: d.compose, File: text, Variables: given, Policy: everything})
	if wrong != nil {
		return nil //nolint:nilerr // the server says what is wrong, for everybody alike
	}
	base := filepath.Dir(d.compose)
	for _, need := range rendered.Needs {
		at := filepath.Join(base, filepath.FromSlash(need))
		if !filepath.IsLocal(at) {
			continue // the server refuses it, with its place in the file
		}
		if err := d.walk(at); err != nil {
			return err
		}
	}
	return nil
}

// walk adds a file, or all files of a directory.
func (d *directory) walk(at string) error {
	err := filepath.WalkDir(filepath.Join(d.root, at), func(p string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && e.Name() == ".git":
			return filepath.SkipDir
		case e.IsDir():
			return nil
		}
		rel, err := filepath.Rel(d.root, p)
		if err != nil {
			return fmt.Errorf("place %s: %w", p, err)
		}
		_, err = d.add(rel)
		return err
	})
	if errors.Is(err, fs.ErrNotExist) { // the server says what that means
		return nil
	}
	return err
}

// add reads one file. A link counts as what it leads to, if that is below the
// directory.
func (d *directory) add(rel string) ([]byte, error) {
	slash := filepath.ToSlash(rel)
	if i := slices.IndexFunc(d.files, func(f gen.PlaygroundFile) bool { return f.Path == slash }); i >= 0 {
		return d.files[i].Data, nil
	}
	root, err := os.OpenRoot(d.root)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", d.root, err)
	}
	defer root.Close()
	info, err := root.Stat(rel)
	switch {
	case err != nil:
		return nil, fmt.Errorf("read %s: %w", rel, err)
	case !info.Mode().IsRegular():
		return nil, d.Usage("%s is no ordinary file, and cannot be sent", rel)
	case info.Size() > maxFileBytes:
		return nil, d.Usage("%s has %d bytes; a file may have %d\nPut large data into an image or a volume", rel, info.Size(), maxFileBytes)
	}
	data, err := root.ReadFile(rel)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", rel, err)
	}
	if d.bytes += len(data); d.bytes > maxBytes {
		return nil, d.Usage("the files that %s uses have more than %d bytes together\nPut large data into an image or a volume", d.compose, maxBytes)
	}
	if len(d.files) >= maxFiles {
		return nil, d.Usage("%s uses more than %d files\nMount fewer, or put them into an image", d.compose, maxFiles)
	}
	d.files = append(d.files, gen.PlaygroundFile{Path: slash, Mode: int(info.Mode().Perm()), Data: data})
	return data, nil
}

var used = regexp.MustCompile(`\$\{?([A-Za-z_][A-Za-z0-9_]*)`)

// fromEnvironment are the variables of this shell that a compose file names.
func fromEnvironment(text []byte, lookup func(string) (string, bool)) map[string]string {
	out := map[string]string{}
	for _, m := range used.FindAllSubmatch(text, -1) {
		if v, ok := lookup(string(m[1])); ok {
			out[string(m[1])] = v
		}
	}
	return out
}

// parseEnv reads NAME=value lines well enough to tell which files a compose
// file names; the server reads .env itself.
func parseEnv(text []byte) map[string]string {
	out := map[string]string{}
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		name, value, ok := strings.Cut(strings.TrimPrefix(strings.TrimSpace(lines.Text()), "export "), "=")
		if ok && !strings.HasPrefix(name, "#") {
			out[strings.TrimSpace(name)] = strings.Trim(strings.TrimSpace(value), `"'`)
		}
	}
	return out
}
