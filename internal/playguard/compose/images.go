package compose

import (
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
)

// Images lists the images of a rendered file, each once, sorted.
func Images(file []byte) (out []string) {
	var doc struct {
		Services map[string]struct {
			Image string `yaml:"image"`
		} `yaml:"services"`
	}
	if yaml.Unmarshal(file, &doc) != nil { // it was rendered here
		return nil
	}
	for _, s := range doc.Services {
		out = append(out, strings.ReplaceAll(s.Image, "$$", "$"))
	}
	slices.Sort(out)
	return slices.Compact(out)
}
