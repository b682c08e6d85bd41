//! Checks of a page's markup for tests of reports.

use roxmltree::{Document, Node};

/// A page that was read back.
pub(crate) struct Page(Vec<Element>);

struct Element {
    name: String,
    parent: String,
    text: String,
    cells: Vec<String>,
}

impl Page {
    /// Reads a page: it is well-formed, has one body, loads nothing, runs nothing, and holds no
    /// number that is none.
    pub(crate) fn of(page: &str) -> Self {
        for foreign in ["http:", "https:", "<script", "src=", "url(", "@import"] {
            assert!(!page.contains(foreign), "{foreign}");
        }
        let mut words = page.split(|c: char| !c.is_alphanumeric());
        assert!(words.all(|word| word != "NaN" && word != "inf"));
        // The only elements without an end.
        let mut parts = page.split("<meta ");
        let first = parts.next().unwrap().to_owned();
        let xml = parts.fold(first, |xml, part| xml + part.split_once('>').unwrap().1);
        let xml = xml.strip_prefix("<!DOCTYPE html>").unwrap();
        let document = Document::parse(xml).unwrap();
        let text = |node: Node<'_, '_>| -> String {
            let texts = node.descendants().filter(Node::is_text);
            texts.filter_map(|text| text.text()).collect()
        };
        let elements: Vec<Element> = document
            .descendants()
            .filter(Node::is_element)
            .map(|node| Element {
                name: node.tag_name().name().to_owned(),
                parent: node
                    .parent_element()
                    .map_or(String::new(), |parent| parent.tag_name().name().to_owned()),
                text: text(node),
                cells: node
                    .children()
                    .filter(|cell| cell.has_tag_name("td"))
                    .map(text)
                    .collect(),
            })
            .collect();
        let page = Self(elements);
        assert_eq!(page.count("body"), 1);
        assert_eq!(page.count("svg"), page.count("figcaption"));
        page
    }

    pub(crate) fn count(&self, name: &str) -> usize {
        self.texts(name).len()
    }

    /// The texts of all elements of that name.
    pub(crate) fn texts(&self, name: &str) -> Vec<&str> {
        let named = self.0.iter().filter(|element| element.name == name);
        named.map(|element| element.text.as_str()).collect()
    }

    /// The tooltips of charts.
    pub(crate) fn tooltips(&self) -> Vec<&str> {
        let titles = self
            .0
            .iter()
            .filter(|e| e.name == "title" && e.parent != "head");
        titles.map(|element| element.text.as_str()).collect()
    }

    /// The rows of all tables, heads aside.
    pub(crate) fn rows(&self) -> Vec<&[String]> {
        let rows = self.0.iter().map(|element| element.cells.as_slice());
        rows.filter(|cells| !cells.is_empty()).collect()
    }
}
