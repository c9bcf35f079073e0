package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"

	"github.com/fusevm/fuse/internal/durable"
)

// Context is one named server in the configuration file. Rest holds what other
// clients of the same file keep there.
type Context struct {
	Name      string `yaml:"name" json:"name"`
	BaseURL   string `yaml:"base_url" json:"base_url"`
	Token     string `yaml:"token,omitempty" json:"-"`
	TokenFile string `yaml:"token_file,omitempty" json:"token_file,omitempty"`

	Rest map[string]any `yaml:",inline" json:"-"`
}

// Config is the command line's configuration file.
type Config struct {
	CurrentContext string    `yaml:"current_context,omitempty"`
	Contexts       []Context `yaml:"contexts,omitempty"`

	Rest map[string]any `yaml:",inline"`
}

// DefaultConfigPath is $XDG_CONFIG_HOME/fuse/config.yaml, or the same below
// ~/.config.
func DefaultConfigPath() (string, error) {
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", fmt.Errorf("find the configuration directory (set --config): %w", err)
	}
	return filepath.Join(dir, "fuse", "config.yaml"), nil
}

// LoadConfig reads the file; a missing one is empty. A file that others can
// read is refused, since it may hold tokens.
func LoadConfig(path string) (Config, error) {
	var c Config
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return c, fmt.Errorf("read configuration: %w", err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return c, fmt.Errorf("configuration %s can be read by others (mode %04o) and may hold tokens: run chmod 600 %s", path, info.Mode().Perm(), path)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return c, fmt.Errorf("read configuration: %w", err)
	}
	if err := yaml.Unmarshal(data, &c); err != nil {
		return c, fmt.Errorf("configuration %s: %w", path, err)
	}
	// The decoder gives Rest what has a field of its own, too.
	for _, known := range []string{"current_context", "contexts"} {
		delete(c.Rest, known)
	}
	for _, x := range c.Contexts {
		for _, known := range []string{"name", "base_url", "token", "token_file"} {
			delete(x.Rest, known)
		}
	}
	return c, nil
}

// Save writes the file atomically with mode 0600.
func (c Config) Save(path string) error {
	data, err := yaml.Marshal(c)
	if err != nil {
		return fmt.Errorf("encode configuration: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("write configuration: %w", err)
	}
	if err := durable.WriteFile(path, data); err != nil {
		return fmt.Errorf("write configuration: %w", err)
	}
	return nil
}

// Find returns a context by name.
func (c Config) Find(name string) (Context, bool) {
	i := slices.IndexFunc(c.Contexts, func(x Context) bool { return x.Name == name })
	if i < 0 {
		return Context{}, false
	}
	return c.Contexts[i], true
}

// Set adds or replaces a context.
func (c *Config) Set(ctx Context) {
	c.Contexts = slices.DeleteFunc(c.Contexts, func(x Context) bool { return x.Name == ctx.Name })
	c.Contexts = append(c.Contexts, ctx)
	slices.SortFunc(c.Contexts, func(a, b Context) int { return strings.Compare(a.Name, b.Name) })
}

// Remove drops a context; the current one becomes none if it was that.
func (c *Config) Remove(name string) bool {
	n := len(c.Contexts)
	c.Contexts = slices.DeleteFunc(c.Contexts, func(x Context) bool { return x.Name == name })
	if c.CurrentContext == name {
		c.CurrentContext = ""
	}
	return len(c.Contexts) < n
}

func (c Config) names() []string {
	var names []string
	for _, x := range c.Contexts {
		names = append(names, x.Name)
	}
	return names
}
