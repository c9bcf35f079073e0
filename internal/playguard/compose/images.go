package compose

import (
	"slices"
	"strings"

	"github.com/goccy/go-yaml"

	"github.com/fusevm/fuse/internal/fleet"
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

// Registry is the address of the registry that an image is pulled from.
func Registry(image string) string {
	first, _, more := strings.Cut(image, "/")
	if !more || !strings.ContainsAny(first, ".:") && first != "localhost" {
		return "docker.io"
	}
	return first
}

// Registries lists those of a rendered file, each once, sorted.
func Registries(file []byte) (out []string) {
	for _, image := range Images(file) {
		out = append(out, Registry(image))
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Pinned refuses a rendered file with an image that does not name its digest.
func Pinned(file []byte) error {
	for _, image := range Images(file) {
		if !strings.Contains(image, "@sha256:") {
			return fleet.Errorf(fleet.CodeInvalidArgument, "image %s does not name its digest, and images are pulled by digest only", image).
				With(fleet.DetailRemedy, "write it as NAME@sha256:…; docker buildx imagetools inspect NAME tells it")
		}
	}
	return nil
}
