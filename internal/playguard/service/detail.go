package service

import (
	"fmt"
	"strings"

	"github.com/goccy/go-yaml"
)

// detailsOf is what a person wants to see of each service before it is brought
// up: its image and the ports that it opens on the host.
func detailsOf(file []byte) map[string]string {
	var doc struct {
		Services map[string]struct {
			Image string `yaml:"image"`
			Ports []any  `yaml:"ports"`
		} `yaml:"services"`
	}
	if yaml.Unmarshal(file, &doc) != nil { // it was rendered here: only the words would be missing
		return nil
	}
	out := map[string]string{}
	for name, s := range doc.Services {
		text := s.Image
		var ports []string
		for _, p := range s.Ports {
			ports = append(ports, portText(p))
		}
		if len(ports) > 0 {
			text += ", ports " + strings.Join(ports, " ")
		}
		out[name] = text
	}
	return out
}

// portText is a port in the short form of Compose.
func portText(p any) string {
	m, ok := p.(map[string]any)
	if !ok {
		return fmt.Sprint(p)
	}
	text := fmt.Sprint(m["target"])
	if v := m["published"]; v != nil {
		text = fmt.Sprint(v) + ":" + text
	}
	if v := m["host_ip"]; v != nil {
		text = fmt.Sprint(v) + ":" + text
	}
	if v := m["protocol"]; v != nil && v != "tcp" {
		text += "/" + fmt.Sprint(v)
	}
	return text
}
