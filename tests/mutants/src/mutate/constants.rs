//! Constants that have another value, and lists that lack an entry.
//!
//! A mutant is chosen while the program runs, and a constant has its value before. So each use of it in a function chooses between the
//! constant and a second one.

use super::{Finder, is, is_test, words};
use proc_macro2::Span;
use std::collections::HashMap;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Expr, ExprArray, ExprPath, File, ItemConst, ItemImpl, ItemMod, Lit, Type};

/// The constants of a file, by `NAME` or `Type::NAME`.
pub(super) struct Constants {
    known: HashMap<String, Constant>,
}

struct Constant {
    ty: String,
    value: String,
    /// Where it is changed, how that is called, and its value then.
    changes: Vec<(Span, &'static str, String)>,
    /// The mutants, from its first use on.
    numbers: Vec<usize>,
}

struct Collector<'s> {
    source: &'s str,
    /// The type whose `impl` this is.
    of: Option<String>,
    found: Vec<(String, Constant)>,
}

impl Constants {
    pub(super) fn of(file: &File, source: &str) -> Self {
        let mut collector = Collector { source, of: None, found: Vec::new() };
        collector.visit_file(file);
        let mut known = HashMap::new();
        let mut twice = Vec::new();
        for (name, constant) in collector.found {
            if known.insert(name.clone(), constant).is_some() {
                twice.push(name);
            }
        }
        known.retain(|name, _| !twice.contains(name));
        Self { known }
    }
}

impl Collector<'_> {
    fn add(&mut self, name: &str, ty: &Type, value: &Expr) {
        let base = value.span().byte_range().start;
        let text = &self.source[value.span().byte_range()];
        let changes = changes(value, self.source).into_iter().map(|(at, what, instead)| {
            let (from, to) = (at.byte_range().start - base, at.byte_range().end - base);
            (at, what, format!("{}{instead}{}", &text[..from], &text[to..]))
        });
        let in_full = |text: &str| self.of.as_ref().map_or_else(|| text.to_owned(), |of| with_self(text, of));
        let changes = changes.map(|(at, what, text)| (at, what, in_full(&text))).collect();
        let constant = Constant {
            ty: in_full(&self.source[ty.span().byte_range()]),
            value: self.of.as_ref().map_or_else(|| name.to_owned(), |of| format!("{of}::{name}")),
            changes,
            numbers: Vec::new(),
        };
        self.found.push((constant.value.clone(), constant));
    }
}

/// `Self` by its name: an item within a function has no `Self`.
fn with_self(text: &str, of: &str) -> String {
    let is_of_a_name = |c: char| c.is_alphanumeric() || c == '_';
    let mut parts = text.split("Self");
    let mut all = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let whole = !all.ends_with(is_of_a_name) && !part.starts_with(is_of_a_name);
        all.push_str(if whole { of } else { "Self" });
        all.push_str(part);
    }
    all
}

impl<'ast> Visit<'ast> for Collector<'_> {
    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        if !is_test(&module.attrs) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_impl(&mut self, item: &'ast ItemImpl) {
        if is_test(&item.attrs) || !item.generics.params.is_empty() {
            return;
        }
        self.of = Some(self.source[item.self_ty.span().byte_range()].to_owned());
        visit::visit_item_impl(self, item);
        self.of = None;
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        if !is_test(&item.attrs) {
            visit::visit_item_fn(self, item);
        }
    }

    fn visit_item_const(&mut self, item: &'ast ItemConst) {
        if !is_test(&item.attrs) {
            let of = self.of.take();
            self.add(&item.ident.to_string(), &item.ty, &item.expr);
            self.of = of;
        }
    }

    fn visit_impl_item_const(&mut self, item: &'ast syn::ImplItemConst) {
        if !is_test(&item.attrs) {
            self.add(&item.ident.to_string(), &item.ty, &item.expr);
        }
    }
}

/// What may be in an expression's places instead.
fn changes(value: &Expr, source: &str) -> Vec<(Span, &'static str, String)> {
    match value {
        Expr::Reference(reference) => changes(&reference.expr, source),
        Expr::Paren(paren) => changes(&paren.expr, source),
        Expr::Array(array) => {
            let out = taken_out(array, source);
            let mut all: Vec<_> = out.into_iter().map(|(at, text)| (at, "take this entry out", text)).collect();
            for element in &array.elems {
                match element {
                    Expr::Tuple(tuple) => tuple.elems.iter().for_each(|part| all.extend(changes(part, source))),
                    Expr::Reference(_) | Expr::Array(_) => all.extend(changes(element, source)),
                    _ => {}
                }
            }
            all
        }
        // `1 << 20`, `64 * 1024`
        Expr::Binary(binary) => {
            [&binary.left, &binary.right].into_iter().flat_map(|side| changes(side, source)).collect()
        }
        Expr::Lit(literal) => match &literal.lit {
            Lit::Int(number) => number.base10_parse::<u128>().map_or_else(
                |_| Vec::new(),
                |one| vec![(number.span(), "one more than", format!("{}{}", one + 1, number.suffix()))],
            ),
            Lit::Str(text) => word(text.value().as_bytes())
                .map(|other| (text.span(), "another word than", format!("{:?}", String::from_utf8_lossy(&other))))
                .into_iter()
                .collect(),
            Lit::ByteStr(text) => word(&text.value())
                .map(|other| (text.span(), "another word than", format!("b\"{}\"", other.escape_ascii())))
                .into_iter()
                .collect(),
            _ => Vec::new(),
        },
        _ => Vec::new(),
    }
}

/// Another word of this length. A text with several words is for people, or SQL.
fn word(text: &[u8]) -> Option<Vec<u8>> {
    let (first, rest) = text.split_first()?;
    if !text.is_ascii() || rest.iter().any(|byte| byte.is_ascii_whitespace()) {
        return None;
    }
    let other = if *first == b'~' { b'x' } else { b'~' };
    Some([&[other], rest].concat())
}

/// Each entry of a list, with that of a neighbour in its place.
pub(super) fn taken_out(array: &ExprArray, source: &str) -> Vec<(Span, String)> {
    let all: Vec<&Expr> = array.elems.iter().collect();
    if all.len() < 2 || !all.iter().all(|element| is_constant(element)) {
        return Vec::new();
    }
    let text = |element: &Expr| &source[element.span().byte_range()];
    let next = all.iter().cycle().skip(1);
    let pairs = all.iter().zip(next).filter(|(element, next)| words(text(element)) != words(text(next)));
    pairs.map(|(element, next)| (element.span(), text(next).to_owned())).collect()
}

/// Whether it may stand twice, and in a block of its own: no variable is moved, and nothing in it is borrowed that goes with the block.
fn is_constant(expr: &Expr) -> bool {
    match expr {
        Expr::Lit(_) => true,
        Expr::Path(path) => path.path.segments.len() > 1 || is_upper(path),
        Expr::Tuple(tuple) => tuple.elems.iter().all(is_constant),
        Expr::Array(array) => array.elems.iter().all(is_constant),
        Expr::Paren(paren) => is_constant(&paren.expr),
        Expr::Unary(unary) => is_constant(&unary.expr),
        Expr::Cast(cast) => is_constant(&cast.expr),
        Expr::Struct(of) => of.rest.is_none() && of.fields.iter().all(|field| is_constant(&field.expr)),
        Expr::Call(call) => is_constant(&call.func) && call.args.iter().all(is_constant),
        Expr::Reference(reference) => {
            matches!(&*reference.expr, Expr::Lit(_) | Expr::Path(_) | Expr::Array(_)) && is_constant(&reference.expr)
        }
        _ => false,
    }
}

fn is_upper(path: &ExprPath) -> bool {
    path.path.get_ident().is_some_and(|name| name.to_string().starts_with(|c: char| c.is_ascii_uppercase()))
}

impl Finder<'_> {
    /// A use of a constant may be that of another one.
    pub(super) fn constant(&mut self, used: &ExprPath) {
        if used.qself.is_some() {
            return;
        }
        let segments: Vec<String> = used.path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        let mut name = segments.join("::");
        if let [of, rest] = &*segments
            && of == "Self"
        {
            let impls = self.path.first().map(String::as_str).unwrap_or_default();
            let impls = impls.rsplit(" for ").next().unwrap_or_default().trim_end_matches('>');
            name = format!("{impls}::{rest}");
        }
        let Some(mut constant) = self.constants.known.remove(&name) else { return };
        if constant.numbers.is_empty() {
            let around = (std::mem::replace(&mut self.path, vec![name.clone()]), self.functions);
            // The functions that use it have nothing to do with whether the compiler takes this.
            self.functions = usize::MAX - self.mutants.len();
            for (at, what, _) in &constant.changes {
                constant.numbers.push(self.mutant(*at, what, false));
            }
            (self.path, self.functions) = around;
        }
        // A constant of a type is most often a list of its values, which is taken by value; any other may be borrowed for good.
        let (borrow, before, after) = if name.contains("::") { ("", "(", " })") } else { ("&", "(*(", " }))") };
        let twins = constant.numbers.iter().zip(&constant.changes).map(|(number, (_, _, value))| {
            let ty = &constant.ty;
            (Some(*number), format!("if {} {{ const TWIN: {ty} = {value}; {borrow}TWIN }} else ", is(*number)))
        });
        let mut open = vec![(None, before.to_owned())];
        open.extend(twins);
        open.push((None, format!("{{ {borrow}")));
        if !constant.changes.is_empty() {
            self.edits.push(super::Edit { range: used.span().byte_range(), for_all: "", open, close: after });
        }
        self.constants.known.insert(name, constant);
    }
}
