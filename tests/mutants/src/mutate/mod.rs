//! Which mutants a source file has, and the file with all of them built in, each asleep until its number is called.
//!
//! Most kinds and their names are those of cargo-mutants. Its own are: a constant has another value (a number is one more, a word has
//! another first letter), an entry of a list is taken out (its neighbour is repeated, so that the list keeps its type), so is a
//! pattern of several that one arm or one `matches!` has, and what puts something on the disk is left out or comes on the other side of
//! the rename. What is within another macro is left as it is, and so are tests.

mod constants;
mod durability;
mod patterns;

use constants::Constants;
use proc_macro2::Span;
use std::collections::BTreeSet;
use std::ops::Range;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{
    Arm, Attribute, BinOp, Block, Expr, ExprArray, ExprBinary, ExprCall, ExprMacro, ExprMatch, ExprPath, ExprRepeat,
    ExprStruct, ExprUnary, GenericArgument, ImplItemFn, ItemFn, ItemImpl, ItemMod, ItemTrait, Pat, PathArguments,
    ReturnType, Signature, TraitItemFn, Type, UnOp,
};

/// One thing that is changed.
pub struct Mutant {
    pub number: usize,
    pub line: usize,
    /// `replace < with <= in OtherAttempts::read`
    pub name: String,
    /// The line from there on; empty where the whole of a function is replaced, whose name says where.
    pub code: String,
    /// Where its text lies in the changed file, and the range of the function around it there.
    pub written: Vec<Range<usize>>,
    pub function: usize,
}

/// What is put around a range of the source: what all of its mutants need, each of them with its own text, and the close after the
/// original.
struct Edit {
    range: Range<usize>,
    for_all: &'static str,
    open: Vec<(Option<usize>, String)>,
    close: &'static str,
}

impl Mutant {
    /// Whether it replaces all that a function does.
    pub fn is_whole(&self) -> bool {
        self.code.is_empty()
    }
}

impl Edit {
    fn leave_out(&mut self, left_out: &BTreeSet<usize>) {
        self.open.retain(|(number, _)| number.is_none_or(|number| !left_out.contains(&number)));
        if self.open.iter().all(|(number, _)| number.is_none()) {
            (self.for_all, self.open, self.close) = ("", Vec::new(), "");
        }
    }
}

pub struct Mutated {
    pub mutants: Vec<Mutant>,
    pub source: String,
}

/// The file with all of its mutants but those in `left_out`.
///
/// # Errors
/// The file is no Rust.
pub fn mutate(source: &str, first_number: usize, left_out: &BTreeSet<usize>) -> syn::Result<Mutated> {
    let file = syn::parse_file(source)?;
    let mut finder = Finder {
        source,
        first_number,
        mutants: Vec::new(),
        edits: Vec::new(),
        path: Vec::new(),
        functions: 0,
        constants: Constants::of(&file, source),
    };
    finder.visit_file(&file);
    let Finder { mut mutants, mut edits, .. } = finder;
    for edit in &mut edits {
        edit.leave_out(left_out);
    }
    let source = write(source, &edits, &mut mutants, first_number);
    Ok(Mutated { mutants, source })
}

/// Inner edits lie within outer ones; of two with one range, the one that was found first is outside.
fn write(source: &str, edits: &[Edit], mutants: &mut [Mutant], first_number: usize) -> String {
    // Position, closing first; then: opening the widest first, closing the narrowest first.
    let mut events: Vec<(usize, bool, usize, usize)> = Vec::new();
    for (order, edit) in edits.iter().enumerate() {
        let length = edit.range.len();
        events.push((edit.range.start, true, usize::MAX - length, order));
        if !edit.close.is_empty() {
            events.push((edit.range.end, false, length, usize::MAX - order));
        }
    }
    events.sort_unstable();
    let (mut written, mut done) = (String::new(), 0);
    for (position, opens, _, order) in events {
        written.push_str(&source[done..position]);
        done = position;
        let edit = &edits[if opens { order } else { usize::MAX - order }];
        if !opens {
            written.push_str(edit.close);
            continue;
        }
        let start = written.len();
        written.push_str(edit.for_all);
        if !edit.for_all.is_empty() {
            for number in edit.open.iter().filter_map(|(number, _)| *number) {
                mutants[number - first_number].written.push(start..written.len());
            }
        }
        for (number, text) in &edit.open {
            let start = written.len();
            written.push_str(text);
            if let Some(number) = number {
                mutants[number - first_number].written.push(start..written.len());
            }
        }
    }
    written.push_str(&source[done..]);
    written
}

struct Finder<'s> {
    source: &'s str,
    first_number: usize,
    mutants: Vec<Mutant>,
    edits: Vec<Edit>,
    /// The impl and the function that are being looked at.
    path: Vec<String>,
    functions: usize,
    constants: Constants,
}

/// What asks whether a mutant is awake.
fn is(number: usize) -> String {
    format!("crate::mutants::is({number})")
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let text = match &attribute.meta {
            syn::Meta::List(list) => list.tokens.to_string(),
            _ => String::new(),
        };
        attribute.path().is_ident("test")
            || (attribute.path().is_ident("cfg") && (text.starts_with("test") || text.contains("feature")))
            || (attribute.path().is_ident("cfg") && text.starts_with("any (test"))
    })
}

fn plain(node: &impl quote::ToTokens) -> String {
    let text = node.to_token_stream().to_string();
    let tight = ["<", ">", "::", "&", "'", ",", "(", ")", "[", "]"];
    let mut words = String::new();
    for word in text.split(' ') {
        let glued = tight.contains(&word) || words.ends_with(['<', ':', '&', '(', '[']) || words.is_empty();
        if !glued {
            words.push(' ');
        }
        words.push_str(word);
    }
    words
}

impl Finder<'_> {
    fn text(&self, node: &impl Spanned) -> &str {
        &self.source[node.span().byte_range()]
    }

    /// A new mutant; its number.
    fn mutant(&mut self, at: Span, what: &str, whole_function: bool) -> usize {
        let function = self.path.join("::");
        let (name, code) = if whole_function {
            (format!("replace {function} {what}"), String::new())
        } else {
            let rest = self.source[at.byte_range().start..].lines().next().unwrap_or_default();
            (format!("{what} in {function}"), rest.trim_end().to_owned())
        };
        self.numbered(at.start().line, name, code)
    }

    fn numbered(&mut self, line: usize, name: String, code: String) -> usize {
        let number = self.first_number + self.mutants.len();
        self.mutants.push(Mutant { number, line, name, code, written: Vec::new(), function: self.functions });
        number
    }

    /// `whole` becomes one of `alternatives` when its mutant is awake.
    fn choose(&mut self, whole: Range<usize>, alternatives: Vec<(usize, String)>) {
        let mut open = vec![(None, "(".to_owned())];
        for (number, text) in alternatives {
            open.push((Some(number), format!("if {} {{ {text} }} else ", is(number))));
        }
        open.push((None, "{ ".into()));
        self.edits.push(Edit { range: whole, for_all: "", open, close: " })" });
    }

    fn function(&mut self, signature: &Signature, block: &Block, attributes: &[Attribute]) -> bool {
        if is_test(attributes) || signature.constness.is_some() || signature.unsafety.is_some() {
            return false;
        }
        self.functions += 1;
        let name = signature.ident.to_string();
        self.path.push(name.clone());
        if block.stmts.is_empty() || name == "new" || name == "default" || name == "main" {
            self.durability(block);
            return true;
        }
        let (qualifier, values) = match &signature.output {
            ReturnType::Default => (String::new(), vec![String::new()]),
            ReturnType::Type(_, ty) => (format!("-> {} ", plain(ty)), values(ty)),
        };
        let inside = block.brace_token.span.open().byte_range().end..block.brace_token.span.close().byte_range().start;
        let first = block.stmts[0].span();
        // Where the body is the value itself, that is no mutant.
        let body = if block.stmts.len() == 1 { self.text(&block.stmts[0]).to_owned() } else { String::new() };
        let mut open = Vec::new();
        for value in values {
            if value == body && !body.is_empty() {
                continue;
            }
            let number =
                self.mutant(first, &format!("{qualifier}with {}", if value.is_empty() { "()" } else { &value }), true);
            open.push((Some(number), format!(" if {} {{ return {value}; }}", is(number))));
        }
        self.edits.push(Edit { range: inside, for_all: "", open, close: "" });
        self.durability(block);
        true
    }
}

/// What a function of this type may return instead.
fn values(ty: &Type) -> Vec<String> {
    let own = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect::<Vec<_>>();
    let default = || own(&["Default::default()"]);
    match ty {
        Type::Tuple(tuple) if tuple.elems.is_empty() => vec![String::new()],
        Type::Tuple(tuple) => {
            let mut all = vec![String::new()];
            for part in &tuple.elems {
                let parts = values(part);
                all = all.iter().flat_map(|so_far| parts.iter().map(move |it| format!("{so_far}{it}, "))).collect();
            }
            all.into_iter().map(|inside| format!("({inside})")).collect()
        }
        Type::Never(_) => Vec::new(),
        Type::Reference(reference) => match &*reference.elem {
            Type::Path(path) if path.path.is_ident("str") => own(&["\"\"", "\"xyzzy\""]),
            Type::Slice(slice) => {
                let mut all = own(&["Vec::leak(Vec::new())"]);
                all.extend(values(&slice.elem).iter().map(|value| format!("Vec::leak(vec![{value}])")));
                all
            }
            elem => values(elem).iter().map(|value| format!("Box::leak(Box::new({value}))")).collect(),
        },
        Type::Array(array) => {
            values(&array.elem).iter().map(|value| format!("[{value}; {}]", plain(&array.len))).collect()
        }
        Type::ImplTrait(bounds) => {
            let item = bounds.bounds.iter().find_map(|bound| match bound {
                syn::TypeParamBound::Trait(bound) => bound.path.segments.last().filter(|last| last.ident == "Iterator"),
                _ => None,
            });
            if item.is_some() { own(&["::std::iter::empty()"]) } else { Vec::new() }
        }
        Type::Path(path) => {
            let Some(last) = path.path.segments.last() else { return default() };
            let arguments: Vec<&Type> = match &last.arguments {
                PathArguments::AngleBracketed(all) => all
                    .args
                    .iter()
                    .filter_map(|one| if let GenericArgument::Type(ty) = one { Some(ty) } else { None })
                    .collect(),
                _ => Vec::new(),
            };
            let inner = || arguments.first().map_or_else(default, |ty| values(ty));
            let unit = |value: &String| if value.is_empty() { "()".to_owned() } else { value.clone() };
            match last.ident.to_string().as_str() {
                "bool" => own(&["true", "false"]),
                "String" => own(&["String::new()", "\"xyzzy\".into()"]),
                "u8" | "u16" | "u32" | "u64" | "u128" | "usize" => own(&["0", "1"]),
                "i8" | "i16" | "i32" | "i64" | "i128" | "isize" => own(&["0", "1", "-1"]),
                "f32" | "f64" => own(&["0.0", "1.0", "-1.0"]),
                "char" => own(&["'\\0'", "'x'"]),
                "Result" => inner().iter().map(|value| format!("Ok({})", unit(value))).collect(),
                "Option" => {
                    let some = inner();
                    own(&["None"])
                        .into_iter()
                        .chain(some.iter().map(|value| format!("Some({})", unit(value))))
                        .collect()
                }
                "Vec" => {
                    let one = inner();
                    own(&["vec![]"])
                        .into_iter()
                        .chain(one.iter().map(|value| format!("vec![{}]", unit(value))))
                        .collect()
                }
                "Box" | "Arc" | "Rc" => {
                    let outer = last.ident.to_string();
                    inner().iter().map(|value| format!("{outer}::new({})", unit(value))).collect()
                }
                "Cow" => inner().iter().map(|value| format!("::std::borrow::Cow::Owned({value}.to_owned())")).collect(),
                _ => default(),
            }
        }
        _ => default(),
    }
}

/// What an operator may be instead.
fn others(op: &BinOp) -> &'static [&'static str] {
    match op {
        BinOp::Eq(_) => &["!="],
        BinOp::Ne(_) => &["=="],
        BinOp::And(_) => &["||"],
        BinOp::Or(_) => &["&&"],
        BinOp::Lt(_) => &["==", ">", "<="],
        BinOp::Gt(_) => &["==", "<", ">="],
        BinOp::Le(_) => &[">"],
        BinOp::Ge(_) => &["<"],
        BinOp::Add(_) => &["-", "*"],
        BinOp::Sub(_) => &["+", "/"],
        BinOp::Mul(_) => &["+", "/"],
        BinOp::Div(_) => &["%", "*"],
        BinOp::Rem(_) => &["/", "+"],
        BinOp::Shl(_) => &[">>"],
        BinOp::Shr(_) => &["<<"],
        BinOp::BitAnd(_) => &["|", "^"],
        BinOp::BitOr(_) => &["&", "^"],
        BinOp::BitXor(_) => &["|", "&"],
        BinOp::AddAssign(_) => &["-=", "*="],
        BinOp::SubAssign(_) => &["+=", "/="],
        BinOp::MulAssign(_) => &["+=", "/="],
        BinOp::DivAssign(_) => &["%=", "*="],
        BinOp::BitAndAssign(_) => &["|="],
        BinOp::BitOrAssign(_) => &["&="],
        BinOp::BitXorAssign(_) => &["|=", "&="],
        BinOp::ShlAssign(_) => &[">>="],
        BinOp::ShrAssign(_) => &["<<="],
        _ => &[],
    }
}

/// A text on one line.
fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// `OFlags::CLOEXEC`
fn is_of_a_type(path: &syn::ExprPath) -> bool {
    let mut segments = path.path.segments.iter().rev().map(|segment| segment.ident.to_string());
    let is_constant = |name: String| name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_');
    segments.next().is_some_and(is_constant) && segments.next().is_some()
}

fn is_last(path: &syn::Path, name: &str) -> bool {
    path.segments.last().is_some_and(|last| last.ident == name)
}

/// `let` is no value, and stays where it is.
fn has_let(expr: &Expr) -> bool {
    match expr {
        Expr::Let(_) => true,
        Expr::Binary(binary) => has_let(&binary.left) || has_let(&binary.right),
        _ => false,
    }
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        if !is_test(&module.attrs) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_const(&mut self, _: &'ast syn::ItemConst) {}
    fn visit_item_static(&mut self, _: &'ast syn::ItemStatic) {}
    fn visit_impl_item_const(&mut self, _: &'ast syn::ImplItemConst) {}
    fn visit_type(&mut self, _: &'ast Type) {}
    fn visit_generic_argument(&mut self, _: &'ast GenericArgument) {}
    fn visit_expr_const(&mut self, _: &'ast syn::ExprConst) {}
    fn visit_pat(&mut self, _: &'ast Pat) {}
    fn visit_attribute(&mut self, _: &'ast Attribute) {}

    fn visit_item_impl(&mut self, item: &'ast ItemImpl) {
        if is_test(&item.attrs) {
            return;
        }
        let ty = plain(&item.self_ty);
        self.path.push(match &item.trait_ {
            Some((_, path, _)) => format!("<impl {} for {ty}>", plain(path)),
            None => ty,
        });
        visit::visit_item_impl(self, item);
        self.path.pop();
    }

    fn visit_item_trait(&mut self, item: &'ast ItemTrait) {
        self.path.push(item.ident.to_string());
        visit::visit_item_trait(self, item);
        self.path.pop();
    }

    fn visit_item_fn(&mut self, item: &'ast ItemFn) {
        if self.function(&item.sig, &item.block, &item.attrs) {
            visit::visit_block(self, &item.block);
            self.path.pop();
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast ImplItemFn) {
        if self.function(&item.sig, &item.block, &item.attrs) {
            visit::visit_block(self, &item.block);
            self.path.pop();
        }
    }

    fn visit_trait_item_fn(&mut self, item: &'ast TraitItemFn) {
        if let Some(block) = &item.default
            && self.function(&item.sig, block, &item.attrs)
        {
            visit::visit_block(self, block);
            self.path.pop();
        }
    }

    fn visit_expr_binary(&mut self, expr: &'ast ExprBinary) {
        if !has_let(&expr.left) && !has_let(&expr.right) {
            let op = self.text(&expr.op).to_owned();
            let (left, right) = (self.text(&expr.left).to_owned(), self.text(&expr.right).to_owned());
            let mut alternatives = Vec::new();
            // Two flags have no bit in common: `^` makes the same of them as `|`.
            let flags =
                matches!(&expr.op, BinOp::BitOr(_)) && matches!(&*expr.right, Expr::Path(path) if is_of_a_type(path));
            for other in others(&expr.op).iter().filter(|other| !flags || **other != "^") {
                let number = self.mutant(expr.op.span(), &format!("replace {op} with {other}"), false);
                alternatives.push((number, format!("{left} {other} {right}")));
            }
            if !alternatives.is_empty() {
                self.choose(expr.span().byte_range(), alternatives);
            }
        }
        visit::visit_expr_binary(self, expr);
    }

    /// How much is reserved makes no difference, as long as it is not absurd.
    fn visit_expr_call(&mut self, call: &'ast ExprCall) {
        let reserves = matches!(&*call.func, Expr::Path(path) if is_last(&path.path, "with_capacity"));
        if !reserves {
            visit::visit_expr_call(self, call);
        }
    }

    fn visit_expr_unary(&mut self, expr: &'ast ExprUnary) {
        let op = match expr.op {
            UnOp::Not(_) => "!",
            UnOp::Neg(_) if !matches!(*expr.expr, Expr::Lit(_)) => "-",
            _ => return visit::visit_expr_unary(self, expr),
        };
        let number = self.mutant(expr.op.span(), &format!("delete {op}"), false);
        let operand = self.text(&expr.expr).to_owned();
        self.choose(expr.span().byte_range(), vec![(number, operand)]);
        visit::visit_expr_unary(self, expr);
    }

    fn visit_expr_match(&mut self, expr: &'ast ExprMatch) {
        let has_rest = expr.arms.iter().any(|arm| patterns::is_rest(&arm.pat) && arm.guard.is_none());
        for arm in &expr.arms {
            let mut conditions = Vec::new();
            if has_rest && !patterns::is_rest(&arm.pat) {
                let pattern = words(self.text(&arm.pat));
                let number = self.mutant(arm.pat.span(), &format!("delete match arm {pattern}"), false);
                conditions.push((Some(number), format!("!{} && ", is(number))));
            }
            // Without it, a `match` has to have them all.
            if has_rest {
                conditions.extend(self.without_one_case(arm));
            }
            match &arm.guard {
                _ if conditions.is_empty() => {}
                None => {
                    let arrow = arm.fat_arrow_token.span().byte_range().start;
                    conditions.push((None, "true ".into()));
                    self.edits.push(Edit { range: arrow..arrow, for_all: " if ", open: conditions, close: "" });
                }
                Some((_, guard)) if !has_let(guard) => {
                    conditions.push((None, "(".into()));
                    let range = guard.span().byte_range();
                    self.edits.push(Edit { range, for_all: "", open: conditions, close: ")" });
                }
                Some(_) => {}
            }
        }
        visit::visit_expr_match(self, expr);
    }

    fn visit_expr_macro(&mut self, expr: &'ast ExprMacro) {
        self.without_one_pattern(expr);
    }

    fn visit_expr_array(&mut self, expr: &'ast ExprArray) {
        for (at, text) in constants::taken_out(expr, self.source) {
            let number = self.mutant(at, "take this entry out", false);
            self.choose(at.byte_range(), vec![(number, text)]);
        }
        visit::visit_expr_array(self, expr);
    }

    /// The length of an array is no value.
    fn visit_expr_repeat(&mut self, expr: &'ast ExprRepeat) {
        self.visit_expr(&expr.expr);
    }

    fn visit_expr_path(&mut self, expr: &'ast ExprPath) {
        self.constant(expr);
    }

    fn visit_arm(&mut self, arm: &'ast Arm) {
        if let Some((_, guard)) = &arm.guard
            && !has_let(guard)
        {
            let text = words(self.text(&**guard));
            let mut alternatives = Vec::new();
            for value in ["true", "false"] {
                let what = format!("replace match guard {text} with {value}");
                alternatives.push((self.mutant(guard.span(), &what, false), value.to_owned()));
            }
            self.choose(guard.span().byte_range(), alternatives);
        }
        visit::visit_arm(self, arm);
    }

    fn visit_expr_struct(&mut self, expr: &'ast ExprStruct) {
        if expr.rest.is_some() {
            let whole = expr.span().byte_range();
            let mut alternatives = Vec::new();
            for pair in expr.fields.pairs() {
                let field = pair.value();
                let gone = field.span().byte_range().start..pair.span().byte_range().end;
                let name = self.text(&field.member).to_owned();
                let what = format!("delete field {name} from struct {} expression", plain(&expr.path));
                let text = format!("{}{}", &self.source[whole.start..gone.start], &self.source[gone.end..whole.end]);
                alternatives.push((self.mutant(field.span(), &what, false), text));
            }
            if !alternatives.is_empty() {
                self.choose(whole, alternatives);
            }
        }
        visit::visit_expr_struct(self, expr);
    }
}
